// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Shows /v1/state, and follows /v1/events (server-sent events whose data is the same document). The page only reads.
// Text from the server reaches the page through textContent alone, so a name can never become markup.
'use strict';

const HISTORY = 900;          // points of a sparkline: 15 minutes at one a second
const STALE_MS = 15000;       // the manager hears from a node every few seconds
const RETRY_MS = 2000;
const $ = id => document.getElementById(id);
const history = {};           // figure name -> latest values
const sorting = {};           // table id -> { column, down }
let latest = null;

// ---- formats ----
const count = value => value >= 1000 ? Math.round(value).toLocaleString('en') : value.toFixed(value < 10 ? 1 : 0);
const percent = value => (value * 100).toFixed(1) + ' %';
const micros = value => !value ? '–' : value < 1000 ? value.toFixed(0) + ' µs' : (value / 1000).toFixed(1) + ' ms';
const moment = ms => new Date(ms).toISOString().replace('T', ' ').slice(0, 19);
const maybe = (value, format) => value === null || value === undefined ? '–' : format(value);

const FIGURES = [
  ['ops_per_s', 'Operations per second', f => f.ops_per_s, count],
  ['p99_us', 'Time in the node, p50 / p99', f => f.p99_us, (v, f) => micros(f.p50_us) + ' / ' + micros(f.p99_us)],
  ['fallback_share', 'Fallbacks, 5 minutes', f => f.fallback_share, percent],
  ['failed_per_s', 'Failed per second', f => f.failed_per_s, count],
  ['capacity_left', 'Capacity left', f => f.capacity_left, v => maybe(v, percent)],
  ['cpu_saved', 'Gateway CPU seconds saved per second (estimate)', f => f.cpu_saved, v => (Math.round(v * 100) / 100 + 0).toFixed(2)],
];

// ---- small builders ----
function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function sparkline(values, label) {
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('viewBox', '0 0 100 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', label + ', last 15 minutes');
  const known = values.filter(value => value !== null);
  if (known.length > 1) {
    const low = Math.min(...known), span = Math.max(...known) - low || 1;
    const points = known.map((value, i) => (100 * i / (known.length - 1)).toFixed(2) + ' ' + (26 - 24 * (value - low) / span).toFixed(2));
    const path = document.createElementNS(ns, 'path');
    path.setAttribute('d', 'M' + points.join('L'));
    svg.append(path);
  }
  return svg;
}

// A state is a word and a symbol, not only a colour.
// A backend whose device this machine does not have is no fault.
const LEVELS = { good: '✔', none: '–', warning: '▲', critical: '✖' };
const stateLevel = state => ({ ready: 'good', unusable: 'none', draining: 'warning', away: 'warning', quarantined: 'warning' }[state] || 'critical');
const backendState = backend => backend.state === 'unusable' ? 'not usable: ' + backend.reason : backend.state;
function stateCell(level, text) {
  return element('span', LEVELS[level] + ' ' + text, { class: 'state-' + level, title: text });
}

function quotaCell(row) {
  if (!row.quota_ops) return element('span', 'no limit');
  const cell = element('span');
  const share = row.used_ops / row.quota_ops;
  cell.append(element('meter', undefined, { min: 0, max: 1, high: 0.9, value: Math.min(share, 1), 'aria-label': row.name + ' uses ' + percent(share) }));
  cell.append(' ' + percent(share));
  return cell;
}

// ---- tables: column = [title, value for sorting, cell (text or element), is a number] ----
const TABLES = {
  nodes: {
    rows: state => state.nodes.flatMap(node => (node.backends.length ? node.backends : [null]).map(backend => ({ node, backend }))),
    columns: [
      ['Node', r => r.node.name],
      ['State', r => r.node.state, r => stateCell(stateLevel(r.node.state), r.node.state)],
      ['Zone', r => r.node.zone],
      ['Backend', r => r.backend ? r.backend.backend : ''],
      ['Backend state', r => r.backend ? r.backend.state : '', r => r.backend ? stateCell(stateLevel(r.backend.state), backendState(r.backend)) : ''],
      ['Share', r => r.backend ? r.backend.share : 0, r => r.backend ? percent(r.backend.share) : '–', true],
      ['Per second', r => r.backend ? r.backend.ops_per_s : r.node.ops_per_s, r => count(r.backend ? r.backend.ops_per_s : r.node.ops_per_s), true],
      ['Service time', r => r.backend ? r.backend.service_us : 0, r => r.backend ? maybe(r.backend.service_us, micros) : '–', true],
      ['Waiting', r => r.node.waiting, r => String(r.node.waiting), true],
      ['p99', r => r.node.p99_us, r => micros(r.node.p99_us), true],
      ['Connections', r => r.node.connections, r => String(r.node.connections), true],
      ['Version', r => r.node.version],
    ],
    empty: 'no node has registered: millrace node run --access FILE',
  },
  tenants: {
    rows: state => state.tenants,
    columns: [
      ['Tenant', r => r.name],
      ['Weight', r => r.weight, r => String(r.weight), true],
      ['Priority', r => r.priority],
      ['Quota per second', r => r.quota_ops, r => r.quota_ops ? count(r.quota_ops) : 'no limit', true],
      ['Used per second', r => r.used_ops, r => count(r.used_ops), true],
      ['Of the quota', r => r.quota_ops ? r.used_ops / r.quota_ops : 0, quotaCell],
      ['Throttled per second', r => r.throttled_per_s, r => count(r.throttled_per_s), true],
      ['Nodes', r => r.nodes.join(', ')],
    ],
    empty: 'no tenant: millrace tenant create NAME --ops N',
  },
  clients: {
    rows: state => state.clients,
    columns: [
      ['Client', r => r.identity],
      ['Node', r => r.node],
      ['Software', r => r.agent],
      ['Connections', r => r.connections, r => String(r.connections), true],
      ['Pooled', r => r.pooled, r => count(r.pooled), true],
      ['Fallbacks', r => r.fallbacks, r => count(r.fallbacks), true],
      ['Most frequent reason', r => r.fallback_reason],
      ['Asynchronous', r => r.async_share, r => maybe(r.async_share, percent), true],
    ],
    empty: 'no client reports its counters',
  },
  keys: {
    rows: state => state.keys,
    columns: [
      ['Key', r => r.name],
      ['Node', r => r.node],
      ['Public half (SHA-256)', r => r.fingerprint],
      ['Version', r => r.former ? 'former' : 'current'],
      ['Last used', r => r.last_used, r => maybe(r.last_used, v => moment(v * 1000)), true],
      ['Expires', r => r.expires, r => maybe(r.expires, v => moment(v * 1000).slice(0, 10)), true],
      ['Problem', r => r.problem, r => r.problem ? stateCell('critical', r.problem) : ''],
    ],
    empty: state => state.scope === 'pool' ? 'no key: millrace pool key import NAME FILE --tenant TENANT' : 'no key: millrace key import NAME FILE',
  },
  events: {
    rows: state => state.events,
    columns: [
      ['Time (UTC)', r => r.at_ms, r => moment(r.at_ms)],
      ['Level', r => r.level, r => stateCell(r.level, r.level)],
      ['Origin', r => r.origin],
      ['Event', r => r.text],
    ],
    empty: 'no events',
  },
};

function sorted(id, rows, columns) {
  const by = sorting[id];
  if (!by) return rows;
  const value = columns[by.column][1];
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    return typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y));
  };
  const result = [...rows].sort(order);
  return by.down ? result.reverse() : result;
}

function showTable(id) {
  const { rows, columns, empty } = TABLES[id];
  const table = $(id);
  // The header stays, so that the keyboard's focus does.
  if (!table.tHead) {
    const header = table.createTHead().insertRow();
    columns.forEach(([title, , , number], column) => {
      const cell = element('th', undefined, { scope: 'col', class: number ? 'number' : '' });
      const button = element('button', title, { type: 'button' });
      button.addEventListener('click', () => {
        const by = sorting[id];
        sorting[id] = { column, down: by && by.column === column ? !by.down : false };
        showTable(id);
      });
      cell.append(button);
      header.append(cell);
    });
    table.createTBody();
  }
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const by = sorting[id];
    if (by && by.column === column) cell.setAttribute('aria-sort', by.down ? 'descending' : 'ascending');
    else cell.removeAttribute('aria-sort');
  });
  const word = id === 'nodes' ? $('filter').value.trim().toLowerCase() : '';
  const fits = row => !word || columns.some(([, value]) => String(value(row)).toLowerCase().includes(word));
  const lines = sorted(id, rows(latest), columns).filter(fits).map(row => {
    const line = element('tr');
    columns.forEach(([, value, cell, number], column) => {
      const made = cell ? cell(row) : String(value(row));
      const place = column === 0 ? element('th', undefined, { scope: 'row' }) : element('td', undefined, number ? { class: 'number' } : {});
      place.append(made);
      line.append(place);
    });
    return line;
  });
  if (!lines.length) {
    const line = element('tr');
    line.append(element('td', word ? 'none fits the filter' : typeof empty === 'function' ? empty(latest) : empty, { colspan: columns.length, class: 'empty' }));
    lines.push(line);
  }
  table.tBodies[0].replaceChildren(...lines);
}

// ---- the whole ----
function show(state) {
  latest = state;
  $('main').hidden = false;
  $('login').hidden = true;
  const title = state.name === state.scope ? state.name : state.scope + ' ' + state.name;
  $('name').textContent = title;
  document.title = 'Millrace · ' + title;
  const { level, text } = state.verdict;
  const words = LEVELS[level] + ' ' + text;
  // A screen reader reads the verdict only when it changes.
  if ($('verdict').textContent !== words) $('verdict').textContent = words;
  $('verdict').dataset.level = level;
  const figures = FIGURES.map(([name, label, value, format]) => {
    const points = history[name] ||= [];
    const now = value(state.figures);
    points.push(now === undefined ? null : now);
    if (points.length > HISTORY) points.shift();
    const box = element('div');
    const number = element('dd', format(now, state.figures), { id: 'figure-' + name });
    number.append(sparkline(points, label));
    box.append(element('dt', label), number);
    return box;
  });
  $('figures').replaceChildren(...figures);
  Object.keys(TABLES).forEach(showTable);
  age();
}

function age() {
  if (!latest) return;
  const ms = Math.max(0, Date.now() - latest.at_ms);
  $('age').textContent = 'Version ' + latest.version + ', data of ' + moment(latest.at_ms) + ' UTC'
    + (ms > STALE_MS ? ', ' + Math.round(ms / 1000) + ' s old: the connection is lost' : '');
  if (ms > STALE_MS) $('verdict').dataset.level = 'unknown';
}

function headers() {
  const token = sessionStorage.getItem('token');
  return token ? { authorization: 'Bearer ' + token } : {};
}

// fetch instead of EventSource, which cannot send a token.
async function follow() {
  const answer = await fetch('v1/events', { headers: { accept: 'text/event-stream', ...headers() }, cache: 'no-store' });
  if (answer.status === 401 || answer.status === 403) {
    sessionStorage.removeItem('token');
    $('login').hidden = false;
    $('main').hidden = true;
    $('verdict').textContent = answer.status === 401 ? 'The pool shows its state to holders of a token.' : 'This token may not read the pool.';
    return false;
  }
  if (!answer.ok) throw new Error('the server answered ' + answer.status);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return true;
    text += value;
    const events = text.split('\n\n');
    text = events.pop();
    for (const event of events) {
      const data = event.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5).trim()).join('\n');
      if (data) show(JSON.parse(data));
    }
  }
}

async function run() {
  for (;;) {
    try {
      if (!await follow()) return;
    } catch (error) {
      if (!latest) $('verdict').textContent = 'No connection: ' + error.message;
    }
    age();
    await new Promise(wake => setTimeout(wake, RETRY_MS));
  }
}

$('login').addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem('token', $('token').value.trim());
  $('token').value = '';
  run();
});
$('filter').addEventListener('input', () => latest && showTable('nodes'));
setInterval(age, 1000);
run();
