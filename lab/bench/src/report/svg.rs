//! Line charts as self-contained SVG files: both axes logarithmic, each line labeled at its end, and a bar
//! through each point from the lowest to the highest round. Charts draw their own background and are legible
//! on light and dark pages.

use std::fmt::Write as _;

use super::number;

/// Measurement at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

pub struct Series {
    pub name: String,
    /// Index of the color: a system has the same color in all charts.
    pub colour: usize,
    /// Points from left to right.
    pub points: Vec<Point>,
}

pub struct Chart {
    pub title: String,
    /// Text below the title: the better direction, the machine.
    pub subtitle: String,
    /// Label of the horizontal axis.
    pub x_label: String,
    /// Label of the vertical axis.
    pub y_label: String,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 62.0;
/// Distance between the names of two lines.
const NAMES_APART: f64 = 17.0;

/// Colors for light and dark pages, distinct for color-blind readers (after Okabe and Ito).
const COLOURS: [(&str, &str); 8] = [
    ("#d03b00", "#ff7a45"),
    ("#e08e00", "#ffbe4d"),
    ("#0067b0", "#58b4f5"),
    ("#00855f", "#3fd0a2"),
    ("#b0509a", "#e89ad2"),
    ("#6a3fb5", "#b59af0"),
    ("#5c6670", "#aab4be"),
    ("#7a4a21", "#c99a6b"),
];

struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Maps the values to the pixels `from` to `to`, with a little room at both ends.
    fn new(values: impl Iterator<Item = f64>, room: f64, from: f64, to: f64) -> Axis {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        if !least.is_finite() {
            (least, most) = (1.0, 10.0);
        }
        Axis { least: least / room, most: most * room, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.max(self.least) / self.least).ln() / (self.most / self.least).ln();
        self.from + part * (self.to - self.from)
    }

    /// Returns about five round values between the ends.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.most / self.least).log10();
        let steps: &[f64] = match decades {
            d if d > 3.5 => &[1.0],
            d if d > 2.0 => &[1.0, 3.0],
            d if d > 0.7 => &[1.0, 2.0, 5.0],
            _ => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
        };
        let first = self.least.log10().floor() as i32;
        let last = self.most.log10().ceil() as i32;
        let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|tick| (self.least..=self.most).contains(tick)).collect()
    }
}

impl Chart {
    pub fn render(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::new(points().map(|point| point.x), 1.25, LEFT, WIDTH - RIGHT);
        let ys = points().flat_map(|point| [point.low, point.y, point.high]);
        let y = Axis::new(ys, 1.4, HEIGHT - BOTTOM, TOP);
        let mut svg = self.open();
        self.grid(&mut svg, &x, &y);
        for series in &self.series {
            line(&mut svg, series, &x, &y);
        }
        self.names(&mut svg, &x, &y);
        svg.push_str("</svg>\n");
        svg
    }

    fn open(&self) -> String {
        let mut style = String::new();
        for (n, (light, _)) in COLOURS.iter().enumerate() {
            append(&mut style, format_args!(".c{n}{{stroke:{light};fill:{light}}}"));
        }
        style.push_str(
            "@media(prefers-color-scheme:dark){.ground{fill:#14181d}.grid{stroke:#2c343d}text{fill:#d5dbe1}",
        );
        style.push_str(".quiet{fill:#97a3ae}");
        for (n, (_, dark)) in COLOURS.iter().enumerate() {
            append(&mut style, format_args!(".c{n}{{stroke:{dark};fill:{dark}}}"));
        }
        style.push('}');
        let (title, subtitle) = (escaped(&self.title), escaped(&self.subtitle));
        let mut svg = String::new();
        append(
            &mut svg,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
                 height=\"{HEIGHT}\" role=\"img\" font-family=\"system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif\" \
                 font-size=\"13\">\n<title>{title}</title>\n<style>text{{fill:#1d2329}}.ground{{fill:#fff}}\
                 .grid{{stroke:#e3e7eb}}.quiet{{fill:#5d6873}}.line{{fill:none;stroke-width:2}}\
                 {style}text{{stroke:none!important}}.line{{fill:none!important}}</style>\n\
                 <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
                 <text x=\"{LEFT}\" y=\"28\" font-size=\"17\" font-weight=\"600\">{title}</text>\n\
                 <text class=\"quiet\" x=\"{LEFT}\" y=\"49\">{subtitle}</text>\n"
            ),
        );
        svg
    }

    fn grid(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let at = y.at(tick);
            append(
                svg,
                format_args!(
                    "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n\
                     <text class=\"quiet\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                    LEFT - 8.0,
                    at + 4.5,
                    number(tick)
                ),
            );
        }
        // Vertical lines only at the measured sizes.
        let mut sizes: Vec<f64> =
            self.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        for size in sizes {
            let at = x.at(size);
            append(
                svg,
                format_args!(
                    "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n\
                     <text class=\"quiet\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    bottom + 20.0,
                    number(size)
                ),
            );
        }
        let (middle, across) = (f64::midpoint(LEFT, right), f64::midpoint(TOP, bottom));
        append(
            svg,
            format_args!(
                "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
                 <text transform=\"translate(20 {across}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                HEIGHT - 16.0,
                escaped(&self.x_label),
                escaped(&self.y_label)
            ),
        );
    }

    /// Draws the names of the lines beside their ends, moved apart where ends are close.
    fn names(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let ends = self.series.iter().filter_map(|series| Some((series, series.points.last()?)));
        let mut ends: Vec<(&Series, f64, f64)> =
            ends.map(|(series, last)| (series, x.at(last.x), y.at(last.y))).collect();
        ends.sort_by(|one, other| one.2.total_cmp(&other.2));
        let places = moved_apart(&ends.iter().map(|end| end.2).collect::<Vec<_>>(), TOP, HEIGHT - BOTTOM);
        for ((series, end_x, end_y), place) in ends.iter().zip(places) {
            let (class, right) = (class(series), WIDTH - RIGHT + 16.0);
            append(
                svg,
                format_args!(
                    "<path class=\"line {class}\" style=\"stroke-width:1;opacity:.5\" d=\"M{:.1} {end_y:.1}L{:.1} {place:.1}\"/>\n\
                     <text class=\"{class}\" x=\"{right}\" y=\"{:.1}\" font-weight=\"600\">{}</text>\n",
                    end_x + 5.0,
                    right - 4.0,
                    place + 4.5,
                    escaped(&series.name)
                ),
            );
        }
    }
}

fn class(series: &Series) -> String {
    format!("c{}", series.colour % COLOURS.len())
}

fn line(svg: &mut String, series: &Series, x: &Axis, y: &Axis) {
    let class = class(series);
    let mut path = String::new();
    for (n, point) in series.points.iter().enumerate() {
        append(
            &mut path,
            format_args!("{}{:.1} {:.1}", if n == 0 { 'M' } else { 'L' }, x.at(point.x), y.at(point.y)),
        );
    }
    append(svg, format_args!("<path class=\"line {class}\" d=\"{path}\"/>\n"));
    for point in &series.points {
        let (at, low, high) = (x.at(point.x), y.at(point.low), y.at(point.high));
        append(
            svg,
            format_args!(
                "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>\n\
                 <circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{} at {}: {} ({} to {})</title></circle>\n",
                y.at(point.y),
                escaped(&series.name),
                number(point.x),
                number(point.y),
                number(point.low),
                number(point.high)
            ),
        );
    }
}

/// Returns rising positions, each at least [`NAMES_APART`] after its predecessor, and close to the wanted
/// ones.
fn moved_apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    for n in 1..places.len() {
        places[n] = places[n].max(places[n - 1] + NAMES_APART);
    }
    // Positions pushed beyond the bottom push the positions above them back.
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(limit).max(top);
        limit = *place - NAMES_APART;
    }
    places
}

fn append(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes everything");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Fails unless every element is closed in order and attributes and text hold no bare `<` or `&`.
    pub fn check_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg;
        while let Some(at) = rest.find('<') {
            let text = &rest[..at];
            assert!(!text.contains('>'), "a bare > in {text:?}");
            let entities = ["&amp;", "&lt;", "&gt;", "&quot;"];
            for (n, _) in text.match_indices('&') {
                assert!(entities.iter().any(|entity| text[n..].starts_with(entity)), "a bare & in {text:?}");
            }
            let end = at + rest[at..].find('>').expect("a tag ends");
            let tag = &rest[at + 1..end];
            assert_eq!(tag.matches('"').count() % 2, 0, "an attribute is not closed in {tag:?}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().expect("a name"));
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "never closed: {open:?}");
    }

    fn chart(points: Vec<Point>) -> Chart {
        let series = vec![
            Series { name: "a < b & \"c\"".into(), colour: 0, points: points.clone() },
            Series { name: "d".into(), colour: 1, points },
        ];
        let words = |text: &str| text.to_owned();
        Chart {
            title: words("T & t"),
            subtitle: words("s"),
            x_label: words("x"),
            y_label: words("<y>"),
            series,
        }
    }

    #[test]
    fn charts_are_well_formed_whatever_they_show() {
        let point = |x, y| Point { x, y, low: y * 0.9, high: y * 1.1 };
        let points =
            [vec![], vec![point(1.0, 5.0)], vec![point(1.0, 0.0), point(1e6, 1e9)], vec![point(3.0, 3.0); 2]];
        for points in points {
            let svg = chart(points).render();
            check_well_formed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn names_of_close_lines_are_moved_apart_within_the_chart() {
        let places = moved_apart(&[100.0, 101.0, 199.0, 200.0], 70.0, 200.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= NAMES_APART - 1e-9), "{places:?}");
        assert!(places.iter().all(|place| (70.0..=200.0).contains(place)), "{places:?}");
    }

    #[test]
    fn axes_have_a_handful_of_round_ticks() {
        for (least, most) in [(1.0, 2.0), (100.0, 60_000.0), (0.05, 900.0), (1.0, 1e7)] {
            let axis = Axis::new([least, most].into_iter(), 1.0, 0.0, 100.0);
            let ticks = axis.ticks();
            assert!((2..=14).contains(&ticks.len()), "{least} to {most}: {ticks:?}");
        }
    }
}
