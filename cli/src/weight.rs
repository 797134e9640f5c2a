//! `willow weight`: users' shares of the device's processors.

use crate::client::Client;
use crate::failure::{Outcome, fail};
use crate::output;
use crate::table::Table;
use crate::target::TargetOption;

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Weight {
    /// Weights of users; a user who is not listed has 1
    List {
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Give a user a weight, now and whenever the device is started (without a --weight of its own for that user)
    Set {
        /// Number of the user
        user: u32,
        /// The user's part of the processors beside others' with work, 1 to 1000
        weight: u16,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Take a user's weight away: 1, as for any user
    Remove {
        /// Number of the user
        user: u32,
        #[command(flatten)]
        target: TargetOption,
    },
}

/// Runs one.
pub fn run(weight: Weight) -> Outcome<()> {
    match weight {
        Weight::List { target, json } => {
            let weights = Client::connect(&target)?.weights()?;
            if json {
                let one = |(user, weight): &(u32, u16)| serde_json::json!({ "user": user, "weight": weight });
                return output::json(&serde_json::json!({ "weights": weights.iter().map(one).collect::<Vec<_>>() }));
            }
            let mut table = Table::new(&["user", "weight"]);
            for (user, weight) in weights {
                table.row([user.to_string(), weight.to_string()]);
            }
            output::text(&table.render())
        }
        Weight::Set { weight: 0, .. } => fail!("a weight is 1 or more: willow weight remove USER takes it away"),
        Weight::Set { user, weight, target } => Client::connect(&target)?.set_weight(user, weight),
        Weight::Remove { user, target } => Client::connect(&target)?.set_weight(user, 0),
    }
}
