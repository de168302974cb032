// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Plots of measurements, as SVG: grouped bars, and lines over a size.
//!
//! A chart is plain data: title, axes with their units, series with a range where there were several
//! rounds. Its look is decided here, so that all plots of Millrace look alike: rectangles, lines, circles and text,
//! without fonts or images of our own.
//!
//! ```text
//!  BarChart   one row per category, one bar per series in it        compared modes
//!  LineChart  one line per series over a numeric axis               sizes, depths
//! ```

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use crate::error::BenchError;
use crate::stats::Spread;

/// Width of every plot, in SVG units: as wide as a page of text.
const WIDTH: f64 = 900.0;

const LINE_CHART_HEIGHT: f64 = 520.0;

/// Height above the values: the title.
const TOP: f64 = 44.0;

/// Height of the numbers below the values, and of the axis's label.
const AXIS: f64 = 56.0;

/// Width left of the values: numbers, and the axis's label.
const LEFT: f64 = 84.0;

/// Width and height around everything.
const MARGIN: f64 = 12.0;

/// Height of one bar, and of the gap between two categories.
const BAR: f64 = 18.0;

/// Width of a letter of a category's name.
const LETTER: f64 = 7.0;

/// Height of a line in a legend.
const LEGEND_LINE: f64 = 17.0;

/// About as many numbers stand at an axis of lines or bars.
const TICKS: usize = 8;

/// Room for the value behind the longest bar, as a factor.
const HEADROOM: f64 = 1.18;

/// Bound on the values of a chart: with more it cannot be read.
const MAX_VALUES: usize = 10_000;

/// Okabe and Ito's colours, which people with any colour vision can tell apart.
const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#555555"];

/// A measured value: the middle, and its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The value of the bar or point.
    pub middle: f64,
    /// Lowest and highest, drawn as a thin line. `None` if it was measured once.
    pub range: Option<(f64, f64)>,
}

impl From<f64> for Value {
    fn from(middle: f64) -> Self {
        Self { middle, range: None }
    }
}

impl From<Spread> for Value {
    fn from(spread: Spread) -> Self {
        Self { middle: spread.median, range: Some((spread.min, spread.max)) }
    }
}

impl Value {
    fn low(self) -> f64 {
        self.range.map_or(self.middle, |(low, _)| low)
    }

    fn high(self) -> f64 {
        self.range.map_or(self.middle, |(_, high)| high)
    }
}

/// Division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By factors. Values of zero or less are left out.
    Logarithmic,
}

/// Label and scale of an axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity, with its unit: `gateway CPU per handshake (ms)`.
    pub label: String,
    /// Division of the axis.
    pub scale: Scale,
}

impl Axis {
    /// An even axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear }
    }

    /// An axis of factors.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Logarithmic }
    }
}

/// One bar per category.
#[derive(Clone, Debug)]
pub struct Bars {
    /// The name in the legend.
    pub name: String,
    /// Values in the order of the categories. `None` where it was not measured.
    pub values: Vec<Option<Value>>,
}

/// Grouped horizontal bars: the categories from top to bottom, the series next to each other.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Title above the chart.
    pub title: String,
    /// Axis of the values.
    pub axis: Axis,
    /// Names of the groups.
    pub categories: Vec<String>,
    /// The bars of each group, by series.
    pub series: Vec<Bars>,
}

impl BarChart {
    /// The chart as SVG.
    ///
    /// # Errors
    /// [`BenchError::Setup`] if there is nothing to draw, or too much.
    pub fn render(&self) -> Result<String, BenchError> {
        let all = self.series.iter().flat_map(|bars| &bars.values).flatten();
        let values = Span::of(self.axis.scale, all.copied())?;
        let row = (self.series.len() + 1) as f64 * BAR;
        let bottom = TOP + row * self.categories.len() as f64;
        let longest = self.categories.iter().map(|name| name.chars().count());
        let names = 2.0 * MARGIN + LETTER * longest.max().unwrap_or(0) as f64;
        let left = names.min(WIDTH / 2.0);
        // The legend is below the bars, where it hides none of them.
        let legend = LEGEND_LINE * self.series.len() as f64;
        let height = bottom + AXIS + legend + MARGIN;
        let mut canvas = Canvas::new(&self.title, height, left, bottom);
        canvas.x_axis(values, &self.axis.label);
        for (place, category) in self.categories.iter().enumerate() {
            let middle = TOP + row * (place as f64 + 0.5);
            canvas.text((left - 6.0, middle + 4.0), "end", 13, category);
            // Bars that are there stand next to each other, in the middle of their row.
            let shown = self.series.iter().zip(COLOURS.iter().cycle());
            let shown =
                shown.filter_map(|(bars, colour)| Some(((*bars.values.get(place)?)?, colour)));
            let shown: Vec<_> = shown.filter(|(value, _)| values.shows(*value)).collect();
            let top = middle - BAR * shown.len() as f64 / 2.0;
            for (turn, (value, colour)) in shown.iter().enumerate() {
                let top = top + BAR * turn as f64;
                let [from, to, low, high] =
                    [values.zero(), value.middle, value.low(), value.high()]
                        .map(|x| canvas.x(values, x));
                canvas.bar((from.min(to), top), ((to - from).abs(), BAR), colour);
                if value.range.is_some() {
                    let y = top + BAR / 2.0;
                    canvas.line([(low, y), (high, y)], "#000000", 1);
                }
                let beside = (to.max(high) + 4.0, top + 13.0);
                canvas.text(beside, "start", 12, &short(value.middle));
            }
        }
        canvas.legend((left, bottom + AXIS), self.series.iter().map(|bars| &*bars.name));
        Ok(canvas.finish())
    }
}

/// One line of a [`LineChart`].
#[derive(Clone, Debug)]
pub struct PlotLine {
    /// The name in the legend.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, Value)>,
}

/// Lines over a numeric axis.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Title above the chart.
    pub title: String,
    /// Horizontal axis, from left to right.
    pub x: Axis,
    /// Vertical axis, from bottom to top.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<PlotLine>,
}

impl LineChart {
    /// The chart as SVG.
    ///
    /// # Errors
    /// [`BenchError::Setup`] if there is nothing to draw, or too much.
    pub fn render(&self) -> Result<String, BenchError> {
        let points = || self.series.iter().flat_map(|line| &line.points);
        let x = Span::of(self.x.scale, points().map(|&(x, _)| Value::from(x)))?;
        let y = Span::of(self.y.scale, points().map(|&(_, y)| y))?;
        let bottom = LINE_CHART_HEIGHT - AXIS;
        let mut canvas = Canvas::new(&self.title, LINE_CHART_HEIGHT, LEFT, bottom);
        canvas.x_axis(x, &self.x.label);
        canvas.y_axis(y, &self.y.label);
        for (line, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let shown =
                line.points.iter().filter(|(at, value)| x.shows((*at).into()) && y.shows(*value));
            let points =
                shown.map(|&(at, value)| ((canvas.x(x, at), canvas.y(y, value.middle)), value));
            let points: Vec<((f64, f64), Value)> = points.collect();
            for pair in points.windows(2) {
                canvas.line([pair[0].0, pair[1].0], colour, 2);
            }
            for ((at, middle), value) in points {
                let ends = [value.low(), value.high()].map(|end| (at, canvas.y(y, end)));
                canvas.line(ends, colour, 1);
                canvas.add(format_args!(
                    "<circle cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"3\" fill=\"{colour}\"/>"
                ));
            }
        }
        canvas.legend((LEFT + 10.0, TOP + 8.0), self.series.iter().map(|line| &*line.name));
        Ok(canvas.finish())
    }
}

/// A chart under construction: SVG, and the left and lower edge of the values.
struct Canvas {
    svg: String,
    left: f64,
    bottom: f64,
}

impl Canvas {
    /// An empty chart with a title.
    fn new(title: &str, height: f64, left: f64, bottom: f64) -> Self {
        let svg = String::new();
        let mut canvas = Self { svg, left, bottom };
        canvas.add(format_args!(
            "<svg width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             font-family=\"sans-serif\" xmlns=\"http://www.w3.org/2000/svg\">"
        ));
        canvas.bar((0.0, 0.0), (WIDTH, height), "#ffffff");
        canvas.text((WIDTH / 2.0, 28.0), "middle", 18, title);
        canvas
    }

    fn add(&mut self, element: fmt::Arguments<'_>) {
        let _ = writeln!(self.svg, "{element}");
    }

    fn line(&mut self, [(x1, y1), (x2, y2)]: [(f64, f64); 2], colour: &str, width: u32) {
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>"
        ));
    }

    fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    /// Text at a place, which is its `start`, `middle` or `end`.
    fn text(&mut self, (x, y): (f64, f64), anchor: &str, size: u32, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
        ));
    }

    /// Horizontal position of a value on the canvas.
    fn x(&self, span: Span, value: f64) -> f64 {
        self.left + (WIDTH - MARGIN - self.left) * span.position(value)
    }

    /// Vertical position of a value on the canvas.
    fn y(&self, span: Span, value: f64) -> f64 {
        self.bottom - (self.bottom - TOP) * span.position(value)
    }

    /// Numbers and grid of the values from left to right.
    fn x_axis(&mut self, span: Span, label: &str) {
        let left = self.left;
        let bottom = self.bottom;
        for tick in span.ticks(TICKS) {
            let x = self.x(span, tick);
            self.line([(x, TOP), (x, bottom)], "#dddddd", 1);
            self.text((x, bottom + 18.0), "middle", 13, &rounded(tick));
        }
        self.line([(left, bottom), (WIDTH - MARGIN, bottom)], "#000000", 1);
        let middle = f64::midpoint(left, WIDTH - MARGIN);
        self.text((middle, bottom + 40.0), "middle", 14, label);
    }

    /// Numbers and grid of the values from bottom to top.
    fn y_axis(&mut self, span: Span, label: &str) {
        let left = self.left;
        let bottom = self.bottom;
        for tick in span.ticks(TICKS) {
            let y = self.y(span, tick);
            self.line([(left, y), (WIDTH - MARGIN, y)], "#dddddd", 1);
            self.text((left - 6.0, y + 4.0), "end", 13, &rounded(tick));
        }
        self.line([(left, TOP), (left, bottom)], "#000000", 1);
        let middle = f64::midpoint(TOP, bottom);
        self.add(format_args!("<g transform=\"translate(20 {middle:.0}) rotate(-90)\">"));
        self.text((0.0, 0.0), "middle", 14, label);
        self.add(format_args!("</g>"));
    }

    /// The names of the series, below each other.
    fn legend<'a>(&mut self, (x, y): (f64, f64), names: impl Iterator<Item = &'a str>) {
        for (number, (name, colour)) in names.zip(COLOURS.iter().cycle()).enumerate() {
            let y = y + LEGEND_LINE * number as f64;
            self.bar((x, y), (14.0, 10.0), colour);
            self.text((x + 20.0, y + 10.0), "start", 13, name);
        }
    }

    fn finish(self) -> String {
        self.svg + "</svg>\n"
    }
}

/// Writes a rendered chart to a file.
pub fn write(svg: &str, to: &Path) -> Result<(), BenchError> {
    fs::write(to, svg).map_err(BenchError::file("write", to))
}

/// Several rendered charts below each other, as one SVG.
#[must_use]
pub fn stack(charts: &[String]) -> String {
    let mut body = String::new();
    let mut top = 0;
    for chart in charts {
        let height = attribute(chart, "height").unwrap_or(0);
        body.push_str(&format!("<g transform=\"translate(0 {top})\">\n{chart}</g>\n"));
        top += height;
    }
    format!(
        "<svg width=\"{WIDTH}\" height=\"{top}\" viewBox=\"0 0 {WIDTH} {top}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n{body}</svg>\n"
    )
}

/// A number in the first tag of a chart that was rendered here.
fn attribute(svg: &str, name: &str) -> Option<u32> {
    let (_, rest) = svg.split_once(&format!("{name}=\""))?;
    rest.split_once('"')?.0.parse().ok()
}

/// A number as people read it: three significant digits, no exponent.
fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 1e9 => format!("{:.3}G", value / 1e9),
        _ if size >= 1e6 => format!("{:.3}M", value / 1e6),
        _ if size >= 1e5 => format!("{:.0}k", value / 1e3),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// The range of an axis of values.
#[derive(Clone, Copy, Debug)]
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Span {
    fn of(scale: Scale, values: impl Iterator<Item = Value>) -> Result<Self, BenchError> {
        let usable: Vec<Value> = values
            .take(MAX_VALUES + 1)
            .filter(|value| value.middle.is_finite())
            .filter(|value| scale == Scale::Linear || value.middle > 0.0)
            .collect();
        if usable.is_empty() || usable.len() > MAX_VALUES {
            return Err(BenchError::Setup(format!(
                "cannot draw a plot: it has {} values, 1 to {MAX_VALUES} can be read",
                usable.len()
            )));
        }
        let finite = || {
            let ends = usable.iter().flat_map(|value| [value.low(), value.high()]);
            ends.chain(usable.iter().map(|value| value.middle))
                .filter(|end| end.is_finite() && (scale == Scale::Linear || *end > 0.0))
        };
        let (low, high) =
            (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        Ok(match scale {
            Scale::Linear => {
                let low = low.min(0.0) * HEADROOM;
                let high = high.max(0.0) * HEADROOM;
                let high = if high > low { high } else { low + 1.0 };
                Self { scale, low, high }
            }
            Scale::Logarithmic => {
                Self { scale, low: low / HEADROOM, high: high * HEADROOM * HEADROOM }
            }
        })
    }

    /// Value at which bars begin.
    fn zero(self) -> f64 {
        match self.scale {
            Scale::Linear => 0.0,
            Scale::Logarithmic => self.low,
        }
    }

    fn shows(self, value: Value) -> bool {
        value.middle.is_finite() && (self.scale == Scale::Linear || value.middle > 0.0)
    }

    /// Round numbers within the span: about `wanted` evenly, or 1, 2 and 5 times powers of ten.
    fn ticks(self, wanted: usize) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let raw = (self.high - self.low) / wanted.max(1) as f64;
                let power = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0]
                    .into_iter()
                    .map(|factor| factor * power)
                    .find(|step| *step >= raw)
                    .unwrap_or(raw);
                let first = (self.low / step).ceil();
                (0..=2 * wanted)
                    .map(|index| (first + index as f64) * step)
                    .take_while(|tick| *tick <= self.high)
                    .collect()
            }
            Scale::Logarithmic => {
                let decades = (self.high / self.low).log10();
                let factors: &[f64] = if decades > 4.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "exponents of finite numbers are within 400"
                )]
                let exponents = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
                exponents
                    .flat_map(|exponent| factors.iter().map(move |f| f * 10f64.powi(exponent)))
                    .filter(|tick| (self.low..=self.high).contains(tick))
                    .collect()
            }
        }
    }

    /// Position of a value between the ends, 0 to 1; values beyond an end get its position.
    fn position(self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

/// A number at an axis. `2.00` beside a bar shows its precision; here the zeros would be noise.
fn rounded(value: f64) -> String {
    let text = short(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars() -> BarChart {
        BarChart {
            title: "CPU <per> \"handshake\" & more".to_owned(),
            axis: Axis::linear("gateway CPU (ms)"),
            categories: vec!["haproxy, rsa-2048".to_owned(), "nginx, p-256".to_owned()],
            series: vec![
                Bars {
                    name: "local".to_owned(),
                    values: vec![
                        Some(Value { middle: 0.433, range: Some((0.42, 0.46)) }),
                        Some(0.2.into()),
                    ],
                },
                Bars { name: "pooled".to_owned(), values: vec![Some(0.245.into()), None] },
            ],
        }
    }

    #[test]
    fn bars_show_names_values_and_escaped_text() {
        let svg = bars().render().expect("a chart");
        for text in ["haproxy, rsa-2048", "local", "pooled", "0.433", "&lt;per&gt;"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert!(!svg.contains("<per>"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn lines_over_logarithmic_axes_leave_out_what_has_no_logarithm() {
        let chart = LineChart {
            title: "throughput".to_owned(),
            x: Axis::logarithmic("bytes"),
            y: Axis::logarithmic("MB/s"),
            series: vec![PlotLine {
                name: "aes-128-gcm".to_owned(),
                points: vec![(16.0, 0.0.into()), (64.0, 100.0.into()), (8192.0, 9e3.into())],
            }],
        };
        let svg = chart.render().expect("a chart");
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn chart_without_values_is_an_error_and_with_odd_values_is_drawn() {
        let mut chart = bars();
        chart.series[0].values = vec![Some(f64::NAN.into()), Some(f64::INFINITY.into())];
        chart.series[1].values = vec![Some((-1e300).into()), Some(0.0.into())];
        assert!(chart.render().is_ok());
        chart.series.clear();
        assert!(chart.render().is_err());
    }

    #[test]
    fn stacked_charts_are_one_document() {
        let one = bars().render().expect("a chart");
        let height = attribute(&one, "height").expect("a height");
        let two = stack(&[one.clone(), one]);
        assert!(two.starts_with(&format!("<svg width=\"{WIDTH}\" height=\"{}\"", 2 * height)));
    }

    #[test]
    fn ticks_are_round_numbers() {
        let span = |scale, low, high| Span { scale, low, high };
        assert_eq!(
            span(Scale::Linear, 0.0, 1.1).ticks(6),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        assert_eq!(span(Scale::Logarithmic, 0.9, 60.0).ticks(9), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
    }
}
