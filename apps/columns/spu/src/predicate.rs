//! Which rows are selected: an expression in three values, as SQL has it. A comparison with null is unknown, and a row is selected where the whole is
//! true.
//!
//! What always holds: a node's operands come before it; a comparison's value has its column's kind ([`is_sound`]).

use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::engine::{Port, Stop};
use crate::value::{Kind, Scalar, Values};
use crate::wire::{Column, Taker};

/// False, true and unknown.
pub const FALSE: u8 = 0;
/// See [`FALSE`].
pub const TRUE: u8 = 1;
/// See [`FALSE`].
pub const UNKNOWN: u8 = 2;

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compare {
    /// =
    Equal = 0,
    /// !=
    NotEqual = 1,
    /// <
    Less = 2,
    /// <=
    LessOrEqual = 3,
    /// >
    Greater = 4,
    /// >=
    GreaterOrEqual = 5,
}

impl Compare {
    const ALL: [Compare; 6] = [
        Compare::Equal,
        Compare::NotEqual,
        Compare::Less,
        Compare::LessOrEqual,
        Compare::Greater,
        Compare::GreaterOrEqual,
    ];

    /// Whether it holds of two values in that order; `None`: one of them is no number.
    pub fn holds(self, order: Option<Ordering>) -> bool {
        match (self, order) {
            (Compare::NotEqual, order) => order != Some(Ordering::Equal),
            (_, None) => false,
            (Compare::Equal, Some(order)) => order == Ordering::Equal,
            (Compare::Less, Some(order)) => order == Ordering::Less,
            (Compare::LessOrEqual, Some(order)) => order != Ordering::Greater,
            (Compare::Greater, Some(order)) => order == Ordering::Greater,
            (Compare::GreaterOrEqual, Some(order)) => order != Ordering::Less,
        }
    }
}

/// A node of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A column compared with a value.
    Compare {
        /// The column's number in the plan.
        column: u8,
        /// How.
        compare: Compare,
        /// With what.
        value: Scalar,
    },
    /// Whether a column is null.
    IsNull(u8),
    /// The same for all rows: false, true or unknown.
    Constant(u8),
    /// Of a column that is null unknown, else so.
    UnlessNull(u8, bool),
    /// Both of two nodes.
    And(u8, u8),
    /// One of two nodes.
    Or(u8, u8),
    /// Not a node.
    Not(u8),
}

impl Node {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Node::Compare { column, compare, value } => {
                out.extend_from_slice(&[0, *column, *compare as u8]);
                value.encode(out);
            }
            Node::IsNull(column) => out.extend_from_slice(&[1, *column, 0]),
            Node::Constant(value) => out.extend_from_slice(&[2, *value, 0]),
            Node::UnlessNull(column, value) => out.extend_from_slice(&[3, *column, u8::from(*value)]),
            Node::And(a, b) => out.extend_from_slice(&[4, *a, *b]),
            Node::Or(a, b) => out.extend_from_slice(&[5, *a, *b]),
            Node::Not(a) => out.extend_from_slice(&[6, *a, 0]),
        }
    }

    /// Takes one.
    pub fn decode(from: &mut Taker<'_>) -> Option<Node> {
        let (node, a, b) = (from.u8()?, from.u8()?, from.u8()?);
        Some(match node {
            0 => Node::Compare { column: a, compare: *Compare::ALL.get(usize::from(b))?, value: Scalar::decode(from)? },
            1 => Node::IsNull(a),
            2 => Node::Constant(a),
            3 => Node::UnlessNull(a, b == 1),
            4 => Node::And(a, b),
            5 => Node::Or(a, b),
            6 => Node::Not(a),
            _ => return None,
        })
    }
}

/// True where each node can be computed after those before it.
pub fn is_sound(nodes: &[Node], columns: &[Column]) -> bool {
    nodes.iter().enumerate().all(|(number, node)| {
        let column = |column: u8| columns.get(usize::from(column));
        let is_before = |node: u8| usize::from(node) < number;
        match node {
            Node::Compare { column: of, value, .. } => column(*of).is_some_and(|column| column.kind == value.kind()),
            Node::IsNull(of) | Node::UnlessNull(of, _) => column(*of).is_some(),
            Node::Constant(value) => *value <= UNKNOWN,
            Node::And(a, b) | Node::Or(a, b) => is_before(*a) && is_before(*b),
            Node::Not(a) => is_before(*a),
        }
    })
}

/// One flag for each row and node; kept between batches.
#[derive(Default)]
pub struct Scratch {
    flags: Vec<u8>,
}

fn compare(out: &mut [u8], values: &Values, how: Compare, with: &Scalar) {
    fn numbers<T: Copy + PartialOrd>(out: &mut [u8], values: impl Iterator<Item = T>, how: Compare, with: T) {
        macro_rules! each {
            ($operator:tt) => {
                out.iter_mut().zip(values).for_each(|(flag, value)| *flag = u8::from(value $operator with))
            };
        }
        match how {
            Compare::Equal => each!(==),
            Compare::NotEqual => each!(!=),
            Compare::Less => each!(<),
            Compare::LessOrEqual => each!(<=),
            Compare::Greater => each!(>),
            Compare::GreaterOrEqual => each!(>=),
        }
    }
    match with {
        Scalar::Bool(with) => numbers(out, values.ints.iter().copied(), how, i64::from(*with)),
        Scalar::Int(with) => numbers(out, values.ints.iter().copied(), how, *with),
        Scalar::Unsigned(with) => numbers(out, values.ints.iter().map(|value| *value as u64), how, *with),
        Scalar::Float(with) => numbers(out, values.floats.iter().copied(), how, *with),
        Scalar::Bytes(with) => {
            for (row, flag) in out.iter_mut().enumerate() {
                let value = values.text(row);
                *flag = u8::from(match how {
                    Compare::Equal => value == &with[..],
                    Compare::NotEqual => value != &with[..],
                    how => how.holds(Some(value.cmp(&with[..]))),
                });
            }
        }
    }
}

fn unknown_where_null(out: &mut [u8], valid: &[u8]) {
    out.iter_mut().zip(valid).for_each(|(flag, valid)| {
        // For all, so that it is done by vectors.
        *flag = if *valid == 0 { UNKNOWN } else { *flag };
    });
}

impl Scratch {
    /// Computes all nodes for a batch; the last one's flags: which rows are true.
    pub async fn evaluate<P: Port>(
        &mut self,
        port: &P,
        nodes: &[Node],
        columns: &[Values],
        rows: usize,
    ) -> Result<&[u8], Stop> {
        let bytes = rows * nodes.len().max(1);
        self.flags.truncate(bytes);
        self.flags.try_reserve_exact(bytes - self.flags.len()).map_err(|_| Stop::NoMemory)?;
        self.flags.resize(bytes, TRUE);
        // Each node writes all of its own.
        for (number, node) in nodes.iter().enumerate() {
            let (before, out) = self.flags.split_at_mut(number * rows);
            let out = &mut out[..rows];
            let of = |node: &u8| &before[usize::from(*node) * rows..][..rows];
            match node {
                Node::Compare { column, compare: how, value } => {
                    let values = &columns[usize::from(*column)];
                    compare(out, values, *how, value);
                    unknown_where_null(out, &values.valid);
                    if let Scalar::Bytes(value) = value {
                        port.worked(rows * (value.len() * 4 + 16)).await?;
                    }
                }
                Node::IsNull(column) => {
                    let valid = &columns[usize::from(*column)].valid;
                    out.iter_mut().zip(valid).for_each(|(flag, valid)| *flag = 1 - valid);
                }
                Node::Constant(value) => out.fill(*value),
                Node::UnlessNull(column, value) => {
                    out.fill(u8::from(*value));
                    unknown_where_null(out, &columns[usize::from(*column)].valid);
                }
                Node::And(a, b) => {
                    for ((flag, a), b) in out.iter_mut().zip(of(a)).zip(of(b)) {
                        *flag = match (*a, *b) {
                            (FALSE, _) | (_, FALSE) => FALSE,
                            (TRUE, TRUE) => TRUE,
                            _ => UNKNOWN,
                        };
                    }
                }
                Node::Or(a, b) => {
                    for ((flag, a), b) in out.iter_mut().zip(of(a)).zip(of(b)) {
                        *flag = match (*a, *b) {
                            (TRUE, _) | (_, TRUE) => TRUE,
                            (FALSE, FALSE) => FALSE,
                            _ => UNKNOWN,
                        };
                    }
                }
                Node::Not(a) => {
                    for (flag, a) in out.iter_mut().zip(of(a)) {
                        *flag = [TRUE, FALSE, UNKNOWN][usize::from(*a)];
                    }
                }
            }
        }
        let last = nodes.len().saturating_sub(1) * rows;
        Ok(&self.flags[last..last + rows])
    }
}

/// True where a value of that kind has an order with others of it.
pub fn order(a: &Scalar, b: &Scalar) -> Option<Ordering> {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(b),
        _ if a.kind() != b.kind() => None,
        _ if a.is_less(b) => Some(Ordering::Less),
        _ if b.is_less(a) => Some(Ordering::Greater),
        _ => Some(Ordering::Equal),
    }
}

/// True for kinds whose values can be added.
pub fn is_number(kind: Kind) -> bool {
    matches!(kind, Kind::Int | Kind::Unsigned | Kind::Float | Kind::Bool)
}
