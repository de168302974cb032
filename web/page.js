// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Shows /v1/state, and follows /v1/events (server-sent events whose data is the same document). The page only reads.
// Text from the server reaches the page through textContent alone, so a name can never become markup.
'use strict';

const HISTORY = 900;          // points of a sparkline: 15 minutes at one a second
const STALE_MS = 15000;       // the manager hears from a node every few seconds
const RETRY_MS = 2000;
const WHOLE_MS = 10000;       // a whole list is read again, while the page shows it
const $ = id => document.getElementById(id);
const history = {};           // figure name -> latest values
const sorting = {};           // table id -> { column, down }
const drawn = {};             // table id -> Map of row key -> what its line shows
const whole = {};             // table id -> all its rows, once somebody asked for them
let latest = null;
let lost = false;             // whether the server has gone since the latest state

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

function sparkline(label) {
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('viewBox', '0 0 100 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', label + ', last 15 minutes');
  svg.append(document.createElementNS(ns, 'path'));
  return svg;
}

function line(values) {
  const known = values.filter(value => value !== null);
  if (known.length < 2) return '';
  const low = Math.min(...known), span = Math.max(...known) - low || 1;
  const points = known.map((value, i) => (100 * i / (known.length - 1)).toFixed(2) + ' ' + (26 - 24 * (value - low) / span).toFixed(2));
  return 'M' + points.join('L');
}

// Leaves a text alone that stays: it may be selected, and a screen reader reads what changes.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A state is a word and a symbol, not only a colour.
// A backend whose device this machine does not have is no fault.
const LEVELS = { good: '✔', none: '–', warning: '▲', critical: '✖' };
const stateLevel = state => ({ ready: 'good', unusable: 'none', draining: 'warning', away: 'warning', quarantined: 'warning' }[state] || 'critical');
const backendState = backend => backend.state === 'unusable' ? 'not usable: ' + backend.reason : backend.state;
function stateCell(level, text) {
  return element('span', LEVELS[level] + ' ' + text, { class: 'state-' + level, title: text });
}

const nodeState = node => node.silent ? node.state + ', silent' : node.state;
const nodeCell = node => stateCell(node.silent ? 'warning' : stateLevel(node.state), nodeState(node));

// A node alone does not know where its tenants are served.
function servedCell(row) {
  const names = row.nodes.join(', ');
  return latest.scope === 'pool' && row.serving === 0 ? stateCell('critical', names ? names + ': not heard' : 'no node') : names;
}

function grantedCell(row) {
  const text = row.quota_ops ? count(row.granted_ops) : 'no limit';
  const below = latest.scope === 'pool' && (row.short || row.quota_ops && row.granted_ops + 0.5 < row.quota_ops);
  return below ? stateCell('warning', text) : text;
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
// `key` names a row from one state to the next. `rest` says where the rows are that the server leaves out.
const TABLES = {
  nodes: {
    rows: state => state.nodes.flatMap(node => (node.backends.length ? node.backends : [null]).map(backend => ({ node, backend }))),
    key: r => [r.node.name, r.backend && r.backend.backend],
    columns: [
      ['Node', r => r.node.name],
      ['State', r => nodeState(r.node), r => nodeCell(r.node)],
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
    key: r => r.name,
    rest: 'millrace status',
    columns: [
      ['Tenant', r => r.name],
      ['Weight', r => r.weight, r => String(r.weight), true],
      ['Priority', r => r.priority],
      ['Quota per second', r => r.quota_ops, r => r.quota_ops ? count(r.quota_ops) : 'no limit', true],
      ['Granted per second', r => r.granted_ops, grantedCell, true],
      ['Used per second', r => r.used_ops, r => count(r.used_ops), true],
      ['Of the quota', r => r.quota_ops ? r.used_ops / r.quota_ops : 0, quotaCell],
      ['Throttled per second', r => r.throttled_per_s, r => count(r.throttled_per_s), true],
      ['Refused per second', r => r.refused_per_s || 0, r => r.refused_per_s ? stateCell('warning', count(r.refused_per_s)) : '0.0', true],
      ['Nodes', r => r.nodes.join(', '), servedCell],
    ],
    empty: 'no tenant: millrace tenant create NAME --ops N',
  },
  clients: {
    rows: state => state.clients,
    key: r => [r.node, r.identity, r.agent],
    rest: 'millrace status',
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
    key: r => [r.node, r.name, r.fingerprint],
    rest: 'millrace key list',
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
    key: r => [r.at_ms, r.origin, r.text],
    rest: 'millrace audit',
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
  const all = whole[id] || rows(latest);
  const shown = sorted(id, all, columns).filter(fits);
  showLines(table.tBodies[0], id, shown);
  if (!shown.length) {
    const line = element('tr');
    line.append(element('td', word ? 'none fits the filter' : typeof empty === 'function' ? empty(latest) : empty, { colspan: columns.length, class: 'empty' }));
    table.tBodies[0].replaceChildren(line);
  }
  showRest(id, all.length);
}

// Brings the lines of a table to its rows: lines and cells that stay are not touched, so that a selection stays, too.
function showLines(body, id, rows) {
  const { columns, key } = TABLES[id];
  const before = drawn[id] || new Map();
  const now = drawn[id] = new Map();
  for (const row of rows) {
    let name = JSON.stringify(key(row));
    while (now.has(name)) name += '+';
    const text = JSON.stringify(row) + latest.scope;
    const made = before.get(name) || { line: element('tr'), text: null };
    if (made.text !== text) {
      columns.forEach((column, at) => showCell(made.line, row, column, at));
      made.text = text;
    }
    now.set(name, made);
  }
  let at = body.firstChild;
  for (const { line } of now.values()) {
    if (line === at) at = at.nextSibling;
    else body.insertBefore(line, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function showCell(line, row, [, value, cell, number], at) {
  const made = cell ? cell(row) : String(value(row));
  const place = line.cells[at] || line.appendChild(
    at === 0 ? element('th', undefined, { scope: 'row' }) : element('td', undefined, number ? { class: 'number' } : {}));
  if (typeof made === 'string') {
    if (place.childElementCount || place.textContent !== made) place.textContent = made;
  } else if (!place.firstElementChild || !place.firstElementChild.isEqualNode(made)) {
    place.replaceChildren(made);
  }
}

// How many rows are not shown, and where they are.
function showRest(id, shown) {
  const { rest } = TABLES[id];
  const total = (latest.totals || {})[id] || 0;
  const place = $('rest-' + id);
  if (!place) return;
  place.hidden = total <= shown && !whole[id];
  const asks = latest.scope === 'pool' && id !== 'events';
  const button = place.querySelector('button');
  button.hidden = !asks || Boolean(whole[id]);
  const where = !asks ? ': ' + rest + ' has all' : whole[id] && total > shown ? ': a node reports 50; at the node, ' + rest + ' has all' : '';
  setText(place.querySelector('span'), count(shown).replace('.0', '') + ' of ' + count(Math.max(total, shown)).replace('.0', '') + ' shown' + where);
}

async function loadAll(id) {
  const rows = [];
  let after = '';
  do {
    const answer = await fetch('v1/state/' + id + '?limit=1000' + after, { headers: headers(), cache: 'no-store' });
    if (!answer.ok) throw new Error('the server answered ' + answer.status);
    const page = await answer.json();
    rows.push(...page.items);
    after = page.next ? '&after=' + encodeURIComponent(page.next) : '';
  } while (after);
  whole[id] = rows;
  showTable(id);
}

// ---- the whole ----
function show(state) {
  latest = state;
  $('main').hidden = false;
  $('login').hidden = true;
  const title = state.name === state.scope ? state.name : state.scope + ' ' + state.name;
  $('name').textContent = title;
  document.title = 'Millrace · ' + title;
  lost = false;
  FIGURES.forEach(([name, label, value, format]) => {
    const points = history[name] ||= [];
    const now = value(state.figures);
    points.push(now === undefined ? null : now);
    if (points.length > HISTORY) points.shift();
    let number = $('figure-' + name);
    if (!number) {
      const box = element('div');
      number = element('dd', undefined, { id: 'figure-' + name });
      number.append(element('span'), sparkline(label));
      box.append(element('dt', label), number);
      $('figures').append(box);
    }
    setText(number.firstChild, format(now, state.figures));
    number.querySelector('path').setAttribute('d', line(points));
  });
  Object.keys(TABLES).forEach(showTable);
  age();
}

// The verdict is true as long as the server is there to take it back.
function age() {
  if (!latest) return;
  const ms = Math.max(0, Date.now() - latest.at_ms);
  const old = lost || ms > STALE_MS;
  const { level, text } = latest.verdict;
  const server = latest.scope === 'pool' ? 'manager' : 'node';
  // A screen reader reads the verdict only when it changes.
  setText($('verdict'), old ? 'As of ' + moment(latest.at_ms).slice(11) + ' UTC, ' + server + ' gone: ' + text : LEVELS[level] + ' ' + text);
  $('verdict').dataset.level = old ? 'unknown' : level;
  setText($('age'), 'Version ' + latest.version + ', data of ' + moment(latest.at_ms) + ' UTC'
    + (old ? ', ' + Math.round(ms / 1000) + ' s old: the connection is lost' : ''));
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
    latest = null;
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
    lost = true;
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
for (const id of ['tenants', 'clients', 'keys', 'events']) {
  const place = element('p', undefined, { id: 'rest-' + id, class: 'rest' });
  const button = element('button', 'Show all', { type: 'button', 'aria-label': 'Show all ' + id });
  button.addEventListener('click', () => loadAll(id).catch(error => setText(place.querySelector('span'), 'not loaded: ' + error.message)));
  place.append(element('span'), ' ', button);
  place.hidden = true;
  $(id).parentElement.after(place);
}
setInterval(() => !lost && Object.keys(whole).forEach(id => loadAll(id).catch(() => {})), WHOLE_MS);
setInterval(age, 1000);
run();
