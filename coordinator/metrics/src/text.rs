//! Writes metrics in the Prometheus text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::instrument::{
    Counter, DurationGauge, ExpiryGauge, Gauge, Histogram, LongHistogram, PartsGauge, RoleGauge,
    SilenceGauge, SizeHistogram, View,
};
use super::leaderships::Leaderships;
use super::stages::StageHistograms;

#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Writes HELP and TYPE; the samples of the name must follow.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Writes one line: `name{labels} value`.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.write(format_args!("{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' }));
        }
        self.write(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    fn histogram(&mut self, name: &str, help: &str, view: &View, units_per_one: f64) {
        self.family(name, "histogram", help);
        self.buckets(name, &[], view, units_per_one);
    }

    /// Writes the samples of one histogram; `labels` precede the bound.
    fn buckets(&mut self, name: &str, labels: &[(&str, &str)], view: &View, units_per_one: f64) {
        let bucket = format!("{name}_bucket");
        let bounds = view.cumulative.iter().map(|(bound, seen)| (*bound as f64 / units_per_one, seen));
        for (bound, seen) in bounds.chain([(f64::INFINITY, &view.count)]) {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), seen);
        }
        self.sample(&format!("{name}_sum"), labels, view.sum as f64 / units_per_one);
        self.sample(&format!("{name}_count"), labels, view.count);
    }

    fn write(&mut self, args: std::fmt::Arguments<'_>) {
        self.0.write_fmt(args).expect("writing to a String cannot fail");
    }
}

pub(super) trait Render {
    /// Writes HELP, TYPE and samples.
    fn render(&self, out: &mut Text, name: &str, help: &str);
}

impl Render for Counter {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "counter", help);
        out.sample(name, &[], self.get());
    }
}

impl Render for Gauge {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "gauge", help);
        out.sample(name, &[], self.get());
    }
}

impl Render for DurationGauge {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "gauge", help);
        out.sample(name, &[], self.get().as_secs_f64());
    }
}

impl Render for PartsGauge {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "gauge", help);
        for (part, bytes) in self.get() {
            out.sample(name, &[("part", part)], bytes);
        }
    }
}

impl Render for ExpiryGauge {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "gauge", help);
        for (listener, seconds) in self.get() {
            out.sample(name, &[("listener", listener)], seconds);
        }
    }
}

impl Render for SilenceGauge {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "gauge", help);
        for silence in self.get() {
            out.sample(name, &[("node", &silence.node.to_string())], silence.lasts.as_secs_f64());
        }
    }
}

impl Render for RoleGauge {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "gauge", help);
        let now = self.get();
        for (role, label) in RoleGauge::ROLES {
            out.sample(name, &[("role", label)], u8::from(role == now));
        }
    }
}

impl Render for Histogram {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.histogram(name, help, &self.view(), 1e9);
    }
}

impl Render for Leaderships {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "counter", help);
        for (cause, count) in self.get() {
            out.sample(name, &[("cause", cause)], count);
        }
    }
}

impl Render for StageHistograms {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.family(name, "histogram", help);
        for (stage, histogram) in self.get() {
            out.buckets(name, &[("stage", stage)], &histogram.view(), 1e9);
        }
    }
}

impl Render for LongHistogram {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.histogram(name, help, &self.view(), 1e3);
    }
}

impl Render for SizeHistogram {
    fn render(&self, out: &mut Text, name: &str, help: &str) {
        out.histogram(name, help, &self.view(), 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_and_help_are_escaped() {
        let mut text = Text::default();
        text.family("m", "gauge", "back\\slash\nline");
        text.sample("m", &[("path", "/a\"b\\c\nd"), ("x", "é")], 2);
        let want = "# HELP m back\\\\slash\\nline\n# TYPE m gauge\nm{path=\"/a\\\"b\\\\c\\nd\",x=\"é\"} 2\n";
        assert_eq!(text.finish(), want);
    }

    #[test]
    fn a_sample_without_labels_has_no_braces() {
        let mut text = Text::default();
        text.sample("m", &[], 1.5);
        assert_eq!(text.finish(), "m 1.5\n");
    }
}
