//! A flame graph: a picture in which each function is as wide as the time that it and what it called took, above who called it.

use super::Whole;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Points.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
const MARGIN: f64 = 10.0;
/// Narrower ones are left out.
const NARROWEST: f64 = 0.2;
/// Points that a letter takes.
const LETTER: f64 = 6.6;

/// A frame, and what it called.
#[derive(Default)]
struct Node {
    time_ns: u64,
    children: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, names: impl Iterator<Item = String>, time_ns: u64) {
        let mut node = self;
        node.time_ns += time_ns;
        for name in names {
            node = node.children.entry(name).or_default();
            node.time_ns += time_ns;
        }
    }

    fn depth(&self) -> usize {
        1 + self.children.values().map(Node::depth).max().unwrap_or(0)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A colour that a name always has.
fn colour(name: &str, waits: bool) -> String {
    let hash = name.bytes().fold(2_166_136_261u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    let hue = if waits { 200 + hash % 40 } else { hash % 50 };
    format!("hsl({hue},{}%,{}%)", 70 + (hash >> 8) % 20, 62 + (hash >> 16) % 12)
}

/// Draws a node and all above it; `bottom` is where its row begins.
fn draw(svg: &mut String, name: &str, node: &Node, whole_ns: u64, (left, bottom): (f64, f64), waits: bool) {
    let width = node.time_ns as f64 / whole_ns.max(1) as f64 * (WIDTH - 2.0 * MARGIN);
    if width < NARROWEST {
        return;
    }
    let share = node.time_ns as f64 * 100.0 / whole_ns.max(1) as f64;
    let title = format!("{name} ({:.1} ms, {share:.1} %)", node.time_ns as f64 / 1e6);
    let fill = colour(name, waits);
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<g><title>{}</title><rect x=\"{left:.1}\" y=\"{bottom:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{fill}\" rx=\"2\"/>",
        escaped(&title),
        ROW - 1.0
    );
    let letters = ((width - 6.0) / LETTER).max(0.0) as usize;
    if letters >= 3 {
        let mut shown: String = name.chars().take(letters).collect();
        if shown.len() < name.len() {
            shown = shown.chars().take(letters - 2).chain("..".chars()).collect();
        }
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", left + 3.0, bottom + 12.0, escaped(&shown));
    }
    svg.push_str("</g>\n");
    let mut at = left;
    for (name, child) in &node.children {
        draw(svg, name, child, whole_ns, (at, bottom - ROW), waits);
        at += child.time_ns as f64 / whole_ns.max(1) as f64 * (WIDTH - 2.0 * MARGIN);
    }
}

/// The picture: what ran, and below it what was waited for.
pub fn flame_graph(whole: &Whole) -> String {
    let tree = |stacks: &mut dyn Iterator<Item = (u16, Vec<String>, u64)>| {
        let mut root = Node::default();
        for (spu, names, time_ns) in stacks {
            root.add(std::iter::once(format!("SPU {spu}")).chain(names), time_ns);
        }
        root
    };
    let (running, waiting) = (tree(&mut whole.running_stacks()), tree(&mut whole.waiting_stacks()));
    let heights = [&running, &waiting].map(|root| root.depth() as f64 * ROW + 2.0 * ROW);
    let height = heights[0] + heights[1] + MARGIN;
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"monospace\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fffdf8\"/>\n"
    );
    let mut top = 0.0;
    for (root, what, waits, height) in [
        (&running, "running: processor time", false, heights[0]),
        (&waiting, "waiting: handlers' time", true, heights[1]),
    ] {
        let heading = format!("app {}, {what}, {:.1} ms", whole.app, root.time_ns as f64 / 1e6);
        let _ =
            writeln!(svg, "<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"13\">{}</text>", top + 16.0, escaped(&heading));
        draw(&mut svg, "all", root, root.time_ns, (MARGIN, top + height - ROW), waits);
        top += height;
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    #[test]
    fn frames_lie_above_their_callers_and_are_as_wide_as_their_time() {
        let svg = super::flame_graph(&crate::profile::tests::whole());
        let of = |name: &str| {
            let at = svg.find(&format!("<title>{name} (")).unwrap_or_else(|| panic!("no {name} in {svg}"));
            let number = |field: &str| {
                let from = at + svg[at..].find(&format!(" {field}=\"")).unwrap() + field.len() + 3;
                svg[from..].split('"').next().unwrap().parse::<f64>().unwrap()
            };
            (number("x"), number("y"), number("width"))
        };
        let (start, work) = (of("start"), of("work&lt;&amp;T&gt;"));
        assert!(work.1 < start.1 && work.0 >= start.0 && work.0 + work.2 <= start.0 + start.2 + 0.2);
        // 6 of 8, and 8 of 12 ms.
        assert!((work.2 / start.2 - 0.75).abs() < 0.01 && (start.2 / of("all").2 - 8.0 / 12.0).abs() < 0.01);
        assert!(svg.contains("waiting: handlers' time, 40.0 ms") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
    }
}
