//! The language of `--where`: comparisons of columns with values, joined by and, or and not.
//!
//! ```text
//! or         and { "or" and }                     and  not { "and" not }            not  [ "not" ] primary
//! primary    "(" or ")" | column test             test "=" | "!=" | "<>" | "<" | "<=" | ">" | ">=" value
//!                                                      [ "not" ] "between" value "and" value | [ "not" ] "in" "(" value { "," value } ")"
//!                                                      "is" [ "not" ] "null" | nothing (a column of booleans)
//! column     a word, or anything in `backticks`   value number | 'text' | "text" | true | false
//! ```
//!
//! What always holds: nesting and the number of nodes are bounded; a comparison means what it says for numbers of any kind: a value that a column
//! cannot have is compared as the number that it is.

use columns_spu::predicate::{Compare, Node, TRUE};
use columns_spu::value::{Kind, SCALAR_BYTES_MAX, Scalar};
use columns_spu::wire::NODES_MAX;

use crate::schema::{DataType, Field, parse_date, parse_time};

/// Deepest nesting.
const DEPTH_MAX: usize = 32;

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// Something else is there than what may be.
    #[error("in the expression, at character {at}: {wanted}")]
    Syntax {
        /// From 1 on.
        at: usize,
        /// What may be there.
        wanted: String,
    },
    /// There is no such column.
    #[error("there is no column {name:?}; there are: {known}")]
    NoColumn {
        /// Its name.
        name: String,
        /// Those that are there.
        known: String,
    },
    /// The column's type is not supported.
    #[error("column {name:?}: {why}")]
    Unsupported {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// The value cannot be compared with the column.
    #[error("column {name:?} is {of}, which cannot be compared with {value}")]
    Type {
        /// The column.
        name: String,
        /// Its type.
        of: DataType,
        /// The value.
        value: String,
    },
    /// It is too long.
    #[error("the expression has more than {NODES_MAX} parts, or is nested more than {DEPTH_MAX} deep")]
    TooLong,
}

/// A column's number by its name.
pub fn find(fields: &[Field], name: &str) -> Result<usize, ExpressionError> {
    let found = fields.iter().position(|field| field.name == name).ok_or_else(|| {
        let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        ExpressionError::NoColumn { name: name.to_owned(), known: known.join(", ") }
    })?;
    match &fields[found].of {
        Ok(_) => Ok(found),
        Err(why) => Err(ExpressionError::Unsupported { name: name.to_owned(), why: why.clone() }),
    }
}

/// A value as it is written.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Integer(i128),
    Float(f64),
    Text(String),
    Bool(bool),
}

impl std::fmt::Display for Value {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Integer(value) => write!(out, "{value}"),
            Value::Float(value) => write!(out, "{value}"),
            Value::Text(value) => write!(out, "the text {value:?}"),
            Value::Bool(value) => write!(out, "{value}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A word that is not in quotes.
    Word(String),
    /// A name in backticks.
    Name(String),
    Value(Value),
    Sign(&'static str),
}

const SIGNS: [&str; 11] = ["<=", ">=", "!=", "<>", "==", "=", "<", ">", "(", ")", ","];

fn tokens(text: &str) -> Result<Vec<(usize, Token)>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let error = |wanted: &str| ExpressionError::Syntax { at: at + 1, wanted: wanted.to_owned() };
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (token, bytes) = if matches!(first, '\'' | '"' | '`') {
            let (mut value, mut bytes) = (String::new(), 1);
            loop {
                let end = rest[bytes..].find(first).ok_or_else(|| error("the quote is not closed"))?;
                value += &rest[bytes..bytes + end];
                bytes += end + 1;
                if !rest[bytes..].starts_with(first) {
                    break;
                }
                value.push(first);
                bytes += 1;
            }
            (if first == '`' { Token::Name(value) } else { Token::Value(Value::Text(value)) }, bytes)
        } else if first.is_ascii_digit() || matches!(first, '-' | '+' | '.') {
            let is_part = |(index, part): (usize, char)| {
                let exponent = index > 0 && matches!(rest.as_bytes()[index - 1], b'e' | b'E');
                part.is_ascii_alphanumeric() || part == '.' || (matches!(part, '-' | '+') && (index == 0 || exponent))
            };
            let bytes = rest.char_indices().find(|part| !is_part(*part)).map_or(rest.len(), |(index, _)| index);
            let word = &rest[..bytes];
            let value = match (word.parse(), word.parse::<f64>()) {
                (Ok(value), _) => Value::Integer(value),
                (_, Ok(value)) if value.is_finite() => Value::Float(value),
                _ => return Err(error(&format!("{word:?} is no number"))),
            };
            (Token::Value(value), bytes)
        } else if first.is_alphabetic() || first == '_' {
            let is_part = |part: char| part.is_alphanumeric() || part == '_' || part == '.';
            let bytes = rest.find(|part| !is_part(part)).unwrap_or(rest.len());
            (Token::Word(rest[..bytes].to_owned()), bytes)
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            (Token::Sign(sign), sign.len())
        } else {
            return Err(error(&format!("{first:?} means nothing here")));
        };
        tokens.push((at + 1, token));
        at += bytes;
    }
    Ok(tokens)
}

struct Parser<'a> {
    fields: &'a [Field],
    tokens: Vec<(usize, Token)>,
    next: usize,
    end: usize,
    nodes: Vec<Node>,
    /// Columns that are used: number in the table by number in the plan.
    columns: &'a mut Vec<usize>,
}

type Parsed<T> = Result<T, ExpressionError>;

impl Parser<'_> {
    fn error<T>(&self, wanted: &str) -> Parsed<T> {
        let at = self.tokens.get(self.next).map_or(self.end, |(at, _)| *at);
        Err(ExpressionError::Syntax { at, wanted: wanted.to_owned() })
    }

    fn word(&mut self, wanted: &str) -> bool {
        let is =
            matches!(self.tokens.get(self.next), Some((_, Token::Word(word))) if word.eq_ignore_ascii_case(wanted));
        self.next += usize::from(is);
        is
    }

    fn sign(&mut self, wanted: &str) -> bool {
        let is = matches!(self.tokens.get(self.next), Some((_, Token::Sign(sign))) if *sign == wanted);
        self.next += usize::from(is);
        is
    }

    fn push(&mut self, node: Node) -> Parsed<u8> {
        if self.nodes.len() == NODES_MAX {
            return Err(ExpressionError::TooLong);
        }
        self.nodes.push(node);
        Ok((self.nodes.len() - 1) as u8)
    }

    fn or(&mut self, depth: usize) -> Parsed<u8> {
        let mut node = self.and(depth)?;
        while self.word("or") {
            let more = self.and(depth)?;
            node = self.push(Node::Or(node, more))?;
        }
        Ok(node)
    }

    fn and(&mut self, depth: usize) -> Parsed<u8> {
        let mut node = self.not(depth)?;
        while self.word("and") {
            let more = self.not(depth)?;
            node = self.push(Node::And(node, more))?;
        }
        Ok(node)
    }

    fn not(&mut self, depth: usize) -> Parsed<u8> {
        if depth > DEPTH_MAX {
            return Err(ExpressionError::TooLong);
        }
        if self.word("not") {
            let node = self.not(depth + 1)?;
            return self.push(Node::Not(node));
        }
        if self.sign("(") {
            let node = self.or(depth + 1)?;
            return if self.sign(")") { Ok(node) } else { self.error("a closing parenthesis is missing") };
        }
        self.test()
    }

    fn value(&mut self) -> Parsed<Value> {
        let value = match self.tokens.get(self.next) {
            Some((_, Token::Value(value))) => value.clone(),
            Some((_, Token::Word(word))) if word.eq_ignore_ascii_case("true") => Value::Bool(true),
            Some((_, Token::Word(word))) if word.eq_ignore_ascii_case("false") => Value::Bool(false),
            _ => return self.error("a value is missing: a number, 'text', true or false"),
        };
        self.next += 1;
        Ok(value)
    }

    fn test(&mut self) -> Parsed<u8> {
        let name = match self.tokens.get(self.next) {
            Some((_, Token::Word(name) | Token::Name(name))) => name.clone(),
            _ => return self.error("a column is missing (columns come first in a comparison)"),
        };
        self.next += 1;
        let table = find(self.fields, &name)?;
        let column = place(self.columns, table)?;
        let compares = [
            ("=", Compare::Equal),
            ("==", Compare::Equal),
            ("!=", Compare::NotEqual),
            ("<>", Compare::NotEqual),
            ("<=", Compare::LessOrEqual),
            ("<", Compare::Less),
            (">=", Compare::GreaterOrEqual),
            (">", Compare::Greater),
        ];
        if let Some((_, compare)) = compares.into_iter().find(|(sign, _)| self.sign(sign)) {
            let value = self.value()?;
            return self.compare((table, column), compare, &value);
        }
        if self.word("is") {
            let negated = self.word("not");
            if !self.word("null") {
                return self.error("\"null\" is missing");
            }
            let node = self.push(Node::IsNull(column))?;
            return if negated { self.push(Node::Not(node)) } else { Ok(node) };
        }
        let negated = self.word("not");
        let node = if self.word("between") {
            let least = self.value()?;
            if !self.word("and") {
                return self.error("\"and\" and the upper bound are missing");
            }
            let greatest = self.value()?;
            let least = self.compare((table, column), Compare::GreaterOrEqual, &least)?;
            let greatest = self.compare((table, column), Compare::LessOrEqual, &greatest)?;
            self.push(Node::And(least, greatest))?
        } else if self.word("in") {
            if !self.sign("(") {
                return self.error("\"(\" is missing");
            }
            let value = self.value()?;
            let mut node = self.compare((table, column), Compare::Equal, &value)?;
            while self.sign(",") {
                let value = self.value()?;
                let more = self.compare((table, column), Compare::Equal, &value)?;
                node = self.push(Node::Or(node, more))?;
            }
            if !self.sign(")") {
                return self.error("\")\" is missing");
            }
            node
        } else if !negated && self.fields[table].of == Ok(DataType::Bool) {
            return self.compare((table, column), Compare::Equal, &Value::Bool(true));
        } else {
            return self.error("a comparison is missing: =, !=, <, <=, >, >=, between, in, is null");
        };
        if negated { self.push(Node::Not(node)) } else { Ok(node) }
    }

    fn compare(&mut self, (table, column): (usize, u8), compare: Compare, value: &Value) -> Parsed<u8> {
        let field = &self.fields[table];
        let Ok(of) = field.of else { return Err(ExpressionError::TooLong) };
        let node = comparison(of, column, compare, value).ok_or_else(|| ExpressionError::Type {
            name: field.name.clone(),
            of,
            value: value.to_string(),
        })?;
        self.push(node)
    }
}

/// The number of a table's column in the plan, where it gets one.
pub fn place(columns: &mut Vec<usize>, table: usize) -> Result<u8, ExpressionError> {
    if let Some(place) = columns.iter().position(|column| *column == table) {
        return Ok(place as u8);
    }
    if columns.len() == columns_spu::wire::COLUMNS_MAX {
        return Err(ExpressionError::TooLong);
    }
    columns.push(table);
    Ok((columns.len() - 1) as u8)
}

/// A column compared with a value; `None` where that makes no sense.
fn comparison(of: DataType, column: u8, compare: Compare, value: &Value) -> Option<Node> {
    let node = |value| Some(Node::Compare { column, compare, value });
    // The value lies between two that the column can have, or past them: the order alone decides.
    let beyond = |is_less: bool| {
        let order = if is_less { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
        Some(Node::UnlessNull(column, compare.holds(Some(order))))
    };
    let integer = |value: i128| match of.kind() {
        Kind::Unsigned => match u64::try_from(value) {
            Ok(value) => node(Scalar::Unsigned(value)),
            Err(_) => beyond(value > 0),
        },
        _ => match i64::try_from(value) {
            Ok(value) => node(Scalar::Int(value)),
            Err(_) => beyond(value > 0),
        },
    };
    match (of, value) {
        (DataType::Bool, Value::Bool(value)) => node(Scalar::Bool(*value)),
        (DataType::Date, Value::Text(text)) => integer(parse_date(text)?.into()),
        (DataType::Timestamp(unit, _), Value::Text(text)) => integer(parse_time(text, unit)?.into()),
        (DataType::Utf8 | DataType::Binary | DataType::Fixed(_), Value::Text(text)) => {
            (text.len() <= SCALAR_BYTES_MAX).then_some(())?;
            let mut bytes = text.clone().into_bytes();
            if let DataType::Fixed(width) = of {
                // Records pad what is shorter.
                bytes.resize(bytes.len().max((width as usize).min(SCALAR_BYTES_MAX)), 0);
            }
            node(Scalar::Bytes(bytes))
        }
        (of, Value::Integer(value)) if matches!(of.kind(), Kind::Int | Kind::Unsigned) => integer(*value),
        (of, Value::Float(value)) if matches!(of.kind(), Kind::Int | Kind::Unsigned) => {
            let floor = value.floor();
            if floor.abs() > 1e30 {
                return beyond(floor > 0.0);
            }
            if floor == *value {
                return integer(floor as i128);
            }
            // Between two integers: less than it is at most the one below.
            match compare {
                Compare::Equal => Some(Node::UnlessNull(column, false)),
                Compare::NotEqual => Some(Node::UnlessNull(column, true)),
                Compare::Less | Compare::LessOrEqual => {
                    comparison(of, column, Compare::LessOrEqual, &Value::Integer(floor as i128))
                }
                Compare::Greater | Compare::GreaterOrEqual => {
                    comparison(of, column, Compare::Greater, &Value::Integer(floor as i128))
                }
            }
        }
        (DataType::Float(_), Value::Float(value)) => node(Scalar::Float(*value)),
        (DataType::Float(_), Value::Integer(value)) => node(Scalar::Float(*value as f64)),
        _ => None,
    }
}

/// Nodes of an expression; columns that it uses are appended to `columns`.
pub fn parse(text: &str, fields: &[Field], columns: &mut Vec<usize>) -> Result<Vec<Node>, ExpressionError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { fields, tokens, next: 0, end: text.len() + 1, nodes: Vec::new(), columns };
    parser.or(0)?;
    if parser.next < parser.tokens.len() {
        return parser.error("nothing more may come here but \"and\" or \"or\"");
    }
    Ok(parser.nodes)
}

/// A value as `--edges` has it, for a column of that type.
pub fn edge(of: DataType, text: &str) -> Option<Scalar> {
    match of {
        DataType::Date => parse_date(text).map(Scalar::Int),
        DataType::Timestamp(unit, _) => parse_time(text, unit).map(Scalar::Int),
        of => match of.kind() {
            Kind::Int => text.parse().ok().map(Scalar::Int),
            Kind::Unsigned => text.parse().ok().map(Scalar::Unsigned),
            Kind::Float => text.parse().ok().filter(|value: &f64| value.is_finite()).map(Scalar::Float),
            Kind::Bool | Kind::Bytes => None,
        },
    }
}

/// Whether any row of a part can be selected, by what is known of each of the plan's columns: least and greatest value, and the number of nulls.
pub fn may_select(nodes: &[Node], known: impl Fn(u8) -> (Option<(Scalar, Scalar)>, Option<u64>)) -> bool {
    let mut may: Vec<bool> = Vec::with_capacity(nodes.len());
    for node in nodes {
        may.push(match node {
            Node::Compare { column, compare, value } => match known(*column).0 {
                None => true,
                Some((least, greatest)) => match compare {
                    Compare::Equal => !value.is_less(&least) && !greatest.is_less(value),
                    Compare::Less => least.is_less(value),
                    Compare::LessOrEqual => !value.is_less(&least),
                    Compare::Greater => value.is_less(&greatest),
                    Compare::GreaterOrEqual => !greatest.is_less(value),
                    Compare::NotEqual => true,
                },
            },
            Node::IsNull(column) => known(*column).1 != Some(0),
            Node::Constant(value) => *value == TRUE,
            Node::UnlessNull(_, value) => *value,
            Node::And(a, b) => may[usize::from(*a)] && may[usize::from(*b)],
            Node::Or(a, b) => may[usize::from(*a)] || may[usize::from(*b)],
            // What a node may be says nothing of what it is not.
            Node::Not(_) => true,
        });
    }
    may.last().copied().unwrap_or(true)
}
