// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Plots of measurements, as SVG: grouped bars, and lines over a size.
//!
//! A chart is plain data: title, axes with their units, series with a range where there were several
//! rounds. Its look is decided here, so that all plots of Millrace look alike. Drawing
//! itself is the `plotters` crate's, with its SVG backend only: no fonts, no images, text stays text.
//!
//! ```text
//!  BarChart   one row per category, one bar per series in it        compared modes
//!  LineChart  one line per series over a numeric axis               sizes, depths
//! ```

use std::fmt::Display;
use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::chart::{ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, DrawingArea, IntoDrawingArea, IntoDynElement, PathElement,
    RGBColor, Rectangle, SVGBackend, Text, WHITE,
};
use plotters::series::LineSeries;
use plotters::style::IntoFont;

use crate::error::BenchError;
use crate::stats::Spread;

/// Width of every plot, in SVG units: as wide as a page of text.
const WIDTH: u32 = 900;

/// Height of a line chart.
const LINE_CHART_HEIGHT: u32 = 520;

/// Height of one bar, and of the gap between two categories.
const BAR_HEIGHT: u32 = 18;

/// Height above and below the bars: title, axis, its label.
const BAR_CHART_FRAME: u32 = 110;

/// Height of the frame of a legend, and of a line in it.
const LEGEND_FRAME: u32 = 24;
const LEGEND_LINE: u32 = 17;

/// Room for the value behind the longest bar, as a factor.
const HEADROOM: f64 = 1.18;

/// Bound on the values of a chart: with more it cannot be read.
const MAX_VALUES: usize = 10_000;

/// Okabe and Ito's colours, which people with any colour vision can tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x55, 0x55, 0x55),
];

/// A measured value: the middle, and its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The value of the bar or point.
    pub middle: f64,
    /// Lowest and highest, drawn as a thin line; none if it was measured once.
    pub range: Option<(f64, f64)>,
}

impl From<f64> for Value {
    fn from(middle: f64) -> Self {
        Self {
            middle,
            range: None,
        }
    }
}

impl From<Spread> for Value {
    fn from(spread: Spread) -> Self {
        Self {
            middle: spread.median,
            range: Some((spread.min, spread.max)),
        }
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

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By factors. Values that are not above zero are left out.
    Logarithmic,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity, with its unit: `gateway CPU per handshake (ms)`.
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
}

impl Axis {
    /// An even axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            scale: Scale::Linear,
        }
    }

    /// An axis of factors.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            scale: Scale::Logarithmic,
        }
    }
}

/// One bar per category.
#[derive(Clone, Debug)]
pub struct Bars {
    /// The name in the legend.
    pub name: String,
    /// In the order of the categories; none where it was not measured.
    pub values: Vec<Option<Value>>,
}

/// Grouped horizontal bars: the categories from top to bottom, the series next to each other.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Above the chart.
    pub title: String,
    /// Of the values.
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
        let all = || self.series.iter().flat_map(|bars| &bars.values).flatten();
        let values = Span::of(self.axis.scale, all().copied())?;
        let rows = u32::try_from(self.categories.len()).unwrap_or(u32::MAX);
        let bars = u32::try_from(self.series.len()).unwrap_or(u32::MAX);
        let row = bars.saturating_add(1).saturating_mul(BAR_HEIGHT);
        // The legend is below the bars, where it hides none of them.
        let legend = LEGEND_FRAME.saturating_add(bars.saturating_mul(LEGEND_LINE));
        let height = BAR_CHART_FRAME
            .saturating_add(legend)
            .saturating_add(rows.saturating_mul(row));
        let rows = Rows {
            names: &self.categories,
            below: f64::from(legend) / f64::from(row),
        };
        let mut text = String::new();
        self.draw(&mut text, height, values, rows)?;
        Ok(text)
    }

    fn draw(&self, text: &mut String, height: u32, values: Span, rows: Rows<'_>) -> Drawn {
        let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
        let longest = self.categories.iter().map(|name| name.chars().count());
        let margin = 20 + 7 * u32::try_from(longest.max().unwrap_or(0)).unwrap_or(0);
        let labels = (8, self.categories.len());
        let descriptions = (&*self.axis.label, "");
        let mut chart = frame(
            &root,
            &self.title,
            margin,
            (values, rows),
            labels,
            descriptions,
        )?;
        let share = 1.0 / (self.series.len() + 1) as f64;
        for (index, bars) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let bar = |row: usize, value: Value| {
                // Bars that are there stand next to each other, in the middle of their row.
                let there = |bars: &&Bars| bars.values.get(row).is_some_and(Option::is_some);
                let before = self.series.iter().take(index).filter(there).count() as f64;
                let all = self.series.iter().filter(there).count() as f64;
                let top = row as f64 + 0.5 + share * (before - all / 2.0);
                (value, top, top + share)
            };
            let values_of_rows = bars.values.iter().take(self.categories.len()).enumerate();
            let drawn = values_of_rows
                .filter_map(|(row, value)| value.map(|value| bar(row, value)))
                .filter(|(value, ..)| values.shows(*value));
            let elements = drawn.flat_map(|(value, top, bottom)| {
                let corner = (values.clamp(value.middle), bottom);
                let body = Rectangle::new([(values.zero(), top), corner], colour.filled());
                let y = f64::midpoint(top, bottom);
                let ends = [value.low(), value.high()].map(|x| (values.clamp(x), y));
                let range = PathElement::new(ends, BLACK.stroke_width(1)).into_dyn();
                let beside = values.clamp(value.high().max(value.middle));
                let corner = (beside, top + (bottom - top) * 0.15);
                let font = ("sans-serif", 12).into_font();
                let text = Text::new(format!(" {}", short(value.middle)), corner, font);
                let range = value.range.map(|_| range);
                [body.into_dyn(), text.into_dyn()].into_iter().chain(range)
            });
            chart
                .draw_series(elements)
                .map_err(reason)?
                .label(&bars.name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
                });
        }
        finish(&root, &mut chart, SeriesLabelPosition::LowerRight)
    }
}

/// One line of a [`LineChart`].
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, Value)>,
}

/// Lines over a numeric axis.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Above the chart.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Line>,
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
        let mut text = String::new();
        self.draw(&mut text, x, y)?;
        Ok(text)
    }

    fn draw(&self, text: &mut String, x_span: Span, y_span: Span) -> Drawn {
        let root = SVGBackend::with_string(text, (WIDTH, LINE_CHART_HEIGHT)).into_drawing_area();
        let descriptions = (&*self.x.label, &*self.y.label);
        let mut chart = frame(
            &root,
            &self.title,
            72,
            (x_span, y_span),
            (10, 8),
            descriptions,
        )?;
        for (index, line) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let points: Vec<_> = line
                .points
                .iter()
                .copied()
                .filter(|&(x, y)| x_span.shows(x.into()) && y_span.shows(y))
                .collect();
            let middles = points.iter().map(|&(x, y)| (x, y.middle));
            chart
                .draw_series(LineSeries::new(middles, colour.stroke_width(2)))
                .map_err(reason)?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
            let elements = points.iter().flat_map(|&(x, y)| {
                let ends = [y.low(), y.high()].map(|y| (x, y_span.clamp(y)));
                let range = PathElement::new(ends, colour.stroke_width(1)).into_dyn();
                let point = Circle::new((x, y.middle), 3, colour.filled()).into_dyn();
                [point].into_iter().chain(y.range.map(|_| range))
            });
            chart.draw_series(elements).map_err(reason)?;
        }
        finish(&root, &mut chart, SeriesLabelPosition::UpperLeft)
    }
}

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

/// The frame of either sort of chart: title, axes with about as many labels as wanted, grid.
fn frame<'a, 'b, X, Y>(
    root: &Root<'b>,
    title: &str,
    margin: u32,
    (x, y): (X, Y),
    (x_labels, y_labels): (usize, usize),
    (x_label, y_label): (&str, &str),
) -> Result<Chart<'a, 'b, X, Y>, BenchError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    root.fill(&WHITE).map_err(reason)?;
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 18).into_font())
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(margin.min(WIDTH / 2))
        .build_cartesian_2d(x, y)
        .map_err(reason)?;
    let mut mesh = chart.configure_mesh();
    // Rows of bars have names in place of an axis, and no lines between them.
    if y_label.is_empty() {
        mesh.disable_y_mesh();
    }
    mesh.x_labels(x_labels)
        .y_labels(y_labels)
        .x_desc(x_label)
        .y_desc(y_label)
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .light_line_style(WHITE)
        .draw()
        .map_err(reason)?;
    Ok(chart)
}

/// The legend, and the end of the drawing.
fn finish<'a, 'b, X, Y>(
    root: &Root<'b>,
    chart: &mut Chart<'a, 'b, X, Y>,
    legend: SeriesLabelPosition,
) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
    'b: 'a,
{
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(reason)?;
    root.present().map_err(reason)
}

/// Writes a rendered chart to a file.
///
/// # Errors
/// [`BenchError::File`] if that is not possible.
pub fn write(svg: &str, to: &Path) -> Result<(), BenchError> {
    fs::write(to, svg).map_err(BenchError::file("write", to))
}

/// Several rendered charts below each other, as one SVG.
#[must_use]
pub fn stack(charts: &[String]) -> String {
    let mut body = String::new();
    let mut top = 0;
    for chart in charts {
        let height = attribute(chart, "height").unwrap_or(LINE_CHART_HEIGHT);
        body.push_str(&format!(
            "<g transform=\"translate(0 {top})\">\n{chart}</g>\n"
        ));
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

type Drawn = Result<(), BenchError>;

fn reason(error: impl Display) -> BenchError {
    BenchError::Setup(format!("cannot draw a plot: {error}"))
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
        let (low, high) = (
            finite().fold(f64::INFINITY, f64::min),
            finite().fold(f64::NEG_INFINITY, f64::max),
        );
        Ok(match scale {
            Scale::Linear => {
                let low = low.min(0.0) * HEADROOM;
                let high = high.max(0.0) * HEADROOM;
                let high = if high > low { high } else { low + 1.0 };
                Self { scale, low, high }
            }
            Scale::Logarithmic => Self {
                scale,
                low: low / HEADROOM,
                high: high * HEADROOM * HEADROOM,
            },
        })
    }

    /// Where bars begin.
    fn zero(self) -> f64 {
        match self.scale {
            Scale::Linear => 0.0,
            Scale::Logarithmic => self.low,
        }
    }

    fn clamp(self, value: f64) -> f64 {
        value.clamp(self.low, self.high)
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
                let factors: &[f64] = if decades > 4.0 {
                    &[1.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
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

    /// Where a value is between the ends: 0 to 1.
    fn position(self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => {
                (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
            }
        }
    }
}

impl ValueFormatter<f64> for Span {
    fn format_ext(&self, value: &f64) -> String {
        let text = short(*value);
        // 2.00 on a bar shows its precision; on an axis the zeros are noise.
        match text.contains('.') && !text.contains('e') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        }
    }
}

impl Ranged for Span {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        between(limit, self.position(*value))
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.ticks(hint.bold_points().min(hint.max_num_points()))
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// The categories of a bar chart: row `i` reaches from `i` to `i + 1`, the first on top.
#[derive(Clone, Copy, Debug)]
struct Rows<'a> {
    names: &'a [String],
    /// Room below the last one, in rows.
    below: f64,
}

impl Rows<'_> {
    fn end(self) -> f64 {
        self.names.len() as f64 + self.below
    }
}

impl ValueFormatter<f64> for Rows<'_> {
    fn format_ext(&self, value: &f64) -> String {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a row's number, and beyond the rows there is no name"
        )]
        let row = value.floor().max(0.0) as usize;
        self.names.get(row).cloned().unwrap_or_default()
    }
}

impl Ranged for Rows<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (bottom, top): (i32, i32)) -> i32 {
        between((top, bottom), value / self.end().max(f64::MIN_POSITIVE))
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        (0..self.names.len()).map(|row| row as f64 + 0.5).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end()
    }
}

/// The pixel at this share of the way.
fn between((from, to): (i32, i32), share: f64) -> i32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "casts from floats saturate, and pixels are few"
    )]
    let offset = (f64::from(to - from) * share).round() as i32;
    from.saturating_add(offset)
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
                        Some(Value {
                            middle: 0.433,
                            range: Some((0.42, 0.46)),
                        }),
                        Some(0.2.into()),
                    ],
                },
                Bars {
                    name: "pooled".to_owned(),
                    values: vec![Some(0.245.into()), None],
                },
            ],
        }
    }

    #[test]
    fn bars_show_names_values_and_escaped_text() {
        let svg = bars().render().expect("a chart");
        for text in [
            "haproxy, rsa-2048",
            "local",
            "pooled",
            "0.433",
            "&lt;per&gt;",
        ] {
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
            series: vec![Line {
                name: "aes-128-gcm".to_owned(),
                points: vec![
                    (16.0, 0.0.into()),
                    (64.0, 100.0.into()),
                    (8192.0, 9e3.into()),
                ],
            }],
        };
        let svg = chart.render().expect("a chart");
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn nothing_to_draw_is_an_error_and_odd_values_are_not() {
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
        assert_eq!(
            span(Scale::Logarithmic, 0.9, 60.0).ticks(9),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
        );
    }
}
