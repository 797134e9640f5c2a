//! Plots of experiments, as PNG and SVG.
//!
//! What always holds: nothing of the machine is needed, in particular no font of it: the font comes with the program.

use crate::experiments::{Drawing, Plot, Series};
use plotters::prelude::*;
use plotters::style::register_font;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SIZE: (u32, u32) = (900, 560);
const FONT: &str = "sans-serif";

type Failed = Box<dyn std::error::Error>;

fn have_font() -> Result<(), Failed> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let register = || register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok();
    if *REGISTERED.get_or_init(register) { Ok(()) } else { Err("the plots' font cannot be used".into()) }
}

/// Blocks of a row of the picture of a die.
const WEAR_COLUMNS: usize = 256;
/// Pixels of the picture's height, at most.
const WEAR_HEIGHT_MAX: usize = 16_384;

/// Draws flash as a PNG: a band a die, a point a block, from green (0.0, new) to red (1.0 and more, as worn as it is rated for); black: bad from the
/// factory.
pub fn write_wear(dies: &[Vec<Option<f64>>], path: &Path) -> Result<(), String> {
    let band = |blocks: &Vec<Option<f64>>| blocks.len().div_ceil(WEAR_COLUMNS) + 1;
    let rows: usize = dies.iter().map(band).sum::<usize>() + 1;
    let Some(scale) = (1..=4).rev().find(|scale| rows * scale <= WEAR_HEIGHT_MAX) else {
        return Err(format!("a picture of {rows} rows of blocks is too high: at most {WEAR_HEIGHT_MAX} are drawn"));
    };
    let drawn = || -> Result<(), Failed> {
        let size = (((WEAR_COLUMNS + 2) * scale) as u32, (rows * scale) as u32);
        let area = BitMapBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut top = 1;
        for blocks in dies {
            for (block, wear) in blocks.iter().enumerate() {
                let color = wear.map_or(BLACK, |wear| {
                    let red = (wear.clamp(0.0, 1.0) * 220.0) as u8;
                    RGBColor(red, 220 - red, 0)
                });
                let (x, y) = ((1 + block % WEAR_COLUMNS) * scale, (top + block / WEAR_COLUMNS) * scale);
                let corners = [(x as i32, y as i32), ((x + scale - 1) as i32, (y + scale - 1) as i32)];
                area.draw(&Rectangle::new(corners, color.filled()))?;
            }
            top += band(blocks);
        }
        area.present()?;
        Ok(())
    };
    drawn().map_err(|error| format!("cannot draw {}: {error}", path.display()))
}

/// Writes a plot as `FILE.png` and `FILE.svg` into a folder; returns the paths.
pub fn write(plot: &Plot, folder: &Path) -> Result<[PathBuf; 2], String> {
    let paths = [folder.join(format!("{}.png", plot.file)), folder.join(format!("{}.svg", plot.file))];
    let drawn = || -> Result<(), Failed> {
        have_font()?;
        draw(plot, &BitMapBackend::new(&paths[0], SIZE).into_drawing_area())?;
        draw(plot, &SVGBackend::new(&paths[1], SIZE).into_drawing_area())
    };
    drawn().map_err(|error| format!("cannot draw {}: {error}", paths[0].display()))?;
    Ok(paths)
}

fn draw<B: DrawingBackend>(plot: &Plot, area: &DrawingArea<B, plotters::coord::Shift>) -> Result<(), Failed>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    match &plot.drawing {
        Drawing::Lines { series, log_x, log_y } => lines(plot, area, series, *log_x, *log_y)?,
        Drawing::Bars { parts, bars } => stacked(plot, area, parts, bars)?,
    }
    area.present()?;
    Ok(())
}

fn bounds(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max))
}

/// A number for an axis: no more decimals than it needs.
fn label(value: f64) -> String {
    if value >= 100.0 || value.fract().abs() < 1e-9 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn lines<B: DrawingBackend>(
    plot: &Plot,
    area: &DrawingArea<B, plotters::coord::Shift>,
    series: &[Series],
    log_x: bool,
    log_y: bool,
) -> Result<(), Failed>
where
    B::ErrorType: 'static,
{
    let place =
        |x: f64, y: f64| (if log_x { x.max(1e-12).log2() } else { x }, if log_y { y.max(1e-12).log10() } else { y });
    let all = || series.iter().flat_map(|series| series.points.iter().map(|(x, y)| place(*x, *y)));
    let ((left, right), (bottom, top)) = (bounds(all().map(|(x, _)| x)), bounds(all().map(|(_, y)| y)));
    if !left.is_finite() || !top.is_finite() {
        return Err("there are no points".into());
    }
    let (margin, bottom) = ((right - left).max(1e-9) * 0.04, if log_y { bottom } else { bottom.min(0.0) });
    let top = top + (top - bottom).max(1e-9) * 0.08;
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, (FONT, 24))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(left - margin..right + margin, bottom..top)?;
    chart
        .configure_mesh()
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .label_style((FONT, 16))
        .axis_desc_style((FONT, 18))
        .light_line_style(WHITE)
        .x_label_formatter(&|x| label(if log_x { x.exp2() } else { *x }))
        .y_label_formatter(&|y| label(if log_y { 10_f64.powf(*y) } else { *y }))
        .draw()?;
    for (number, series) in series.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let points: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| place(*x, *y)).collect();
        if series.published {
            chart
                .draw_series(points.iter().map(|at| TriangleMarker::new(*at, 7, color.filled())))?
                .label(&series.name)
                .legend(move |(x, y)| TriangleMarker::new((x + 10, y), 7, color.filled()));
        } else {
            chart.draw_series(points.iter().map(|at| Circle::new(*at, 4, color.filled())))?;
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color.stroke_width(2)));
        }
    }
    chart
        .configure_series_labels()
        .label_font((FONT, 16))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

fn stacked<B: DrawingBackend>(
    plot: &Plot,
    area: &DrawingArea<B, plotters::coord::Shift>,
    parts: &[String],
    bars: &[(String, Vec<f64>)],
) -> Result<(), Failed>
where
    B::ErrorType: 'static,
{
    let top = bars.iter().map(|(_, values)| values.iter().sum::<f64>()).fold(0.0, f64::max);
    if top <= 0.0 || top.is_nan() {
        return Err("there are no bars".into());
    }
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, (FONT, 24))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..bars.len() as f64 + 1.2, 0.0..top * 1.05)?;
    let name = |x: &f64| match bars.get(*x as usize) {
        Some((name, _)) if (x.fract() - 0.5).abs() < 0.01 => name.clone(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * bars.len() + 3)
        .x_label_formatter(&name)
        .y_desc(&plot.y)
        .label_style((FONT, 16))
        .axis_desc_style((FONT, 18))
        .light_line_style(WHITE)
        .draw()?;
    for (number, part) in parts.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let rectangles = bars.iter().enumerate().map(|(bar, (_, values))| {
            let low: f64 = values.iter().take(number).sum();
            let high = low + values.get(number).copied().unwrap_or(0.0);
            Rectangle::new([(bar as f64 + 0.2, low), (bar as f64 + 0.8, high)], color.filled())
        });
        chart
            .draw_series(rectangles)?
            .label(part)
            .legend(move |(x, y)| Rectangle::new([(x + 4, y - 6), (x + 16, y + 6)], color.filled()));
    }
    chart
        .configure_series_labels()
        .label_font((FONT, 16))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    Ok(())
}
