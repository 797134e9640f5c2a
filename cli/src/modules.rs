//! Where compiled code of apps' modules is kept from one start to the next.
//!
//! What always holds: it is a folder of the user's own, for caches; a default that cannot be used is no error, one that was asked for is.

use crate::failure::Outcome;
use std::path::{Path, PathBuf};
use willow_device::KeptModules;

/// `none` as a folder: nowhere.
const NONE: &str = "none";
/// The folder in the user's folder for caches.
const NAME: &str = "compiled-modules";

/// The folder that was asked for, or the default one.
pub fn kept(asked: Option<&Path>) -> Outcome<Option<PathBuf>> {
    match asked {
        Some(none) if none.as_os_str() == NONE => Ok(None),
        Some(folder) => {
            let opened = KeptModules::open(folder);
            opened.map_err(|why| crate::failure::Failure::new(format!("--module-cache: {why}")))?;
            Ok(Some(folder.to_owned()))
        }
        None => Ok(by_default()),
    }
}

/// The default folder, where there is one that nobody else can change.
pub fn by_default() -> Option<PathBuf> {
    let folder = default_folder(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))?;
    match KeptModules::open(&folder) {
        Ok(_) => Some(folder),
        Err(why) => {
            tracing::debug!("compiled code is not kept: {why}");
            None
        }
    }
}

/// systemd's folder for the service, or the user's for caches.
fn default_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let of_service = variable("CACHE_DIRECTORY");
    let of_user = || {
        let caches = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        caches.map(|caches| caches.join("willow"))
    };
    of_service.or_else(of_user).filter(|folder| folder.is_absolute()).map(|folder| folder.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::default_folder;
    use std::path::PathBuf;

    #[test]
    fn the_folder_is_the_services_or_the_users() {
        let of = |known: &[(&str, &str)]| {
            default_folder(|name| known.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value)))
        };
        let all = [("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c"), ("CACHE_DIRECTORY", "/var/cache/willow")];
        assert_eq!(of(&all[..1]), Some("/home/a/.cache/willow/compiled-modules".into()));
        assert_eq!(of(&all[..2]), Some("/c/willow/compiled-modules".into()));
        assert_eq!(of(&all), Some("/var/cache/willow/compiled-modules".into()));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("HOME", "not/from/the/root")]), None);
    }
}
