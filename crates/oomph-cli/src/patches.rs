//! The patches of a plan: what is offered has run within the budget. `--write` applies one, `--undo` takes it out again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use oomph_fit::cache::digest;
use oomph_fit::{Attempts, Found, changed};
use oomph_job::files;
use oomph_plan::by_hand;
use oomph_plan::{Lever, PlanFile, Stopped, Written};

/// Begins a patch and an instruction; other files of these names are not removed.
const HEADS: [&str; 2] = ["# The plan for ", "--- a/"];

/// Why a patch is not known to fit.
const NOT_RUN: &str = "the search ended before the script had run with it";
/// What a patch is headed by that has coarser levers than its plan.
const SLOWER: &str =
    "  Whole blocks are computed again where the plan recomputes parts of them: it takes longer.";

/// A script that patches are made for, as it was before the search.
pub(crate) struct Original {
    path: PathBuf,
    text: String,
}

/// Where things are written.
pub(crate) struct Places<'a> {
    pub(crate) plan: &'a Path,
    pub(crate) patch: &'a Path,
}

/// A patch that ran within the budget.
pub(crate) struct Offer {
    /// The script with it.
    text: String,
    /// Whether it is the line that applies the plan.
    applies: bool,
}

impl Original {
    /// Reads a script. A module, a notebook, and what is no text, has none.
    pub(crate) fn read(script: &str) -> Self {
        let path = PathBuf::from(script);
        let is_notebook = path.extension().is_some_and(|end| end == "ipynb");
        let text = fs::read_to_string(&path).unwrap_or_default();
        Self {
            path,
            text: if is_notebook { String::new() } else { text },
        }
    }

    /// Fails where `--write` would, before anything has run.
    pub(crate) fn expect_writable(&self) -> anyhow::Result<()> {
        let path = self.path.display();
        if self.text.is_empty() {
            bail!(
                "--write changes Python files, and {path} is none: oomph run --plan applies the plan"
            );
        }
        let original = original_of(&self.path);
        if original.exists() {
            bail!(
                "{} is there: --write has changed {path} before. oomph fit --undo {path} takes that out; or remove it to keep the change",
                original.display()
            );
        }
        let data = fs::metadata(&self.path).with_context(|| format!("cannot read {path}"))?;
        if data.permissions().readonly() {
            bail!("{path} is read-only: --write cannot change it");
        }
        Ok(())
    }

    /// Makes the patches of a plan, runs the script with each, and writes those that fit. Returns the one to write into the
    /// script.
    pub(crate) fn offer(
        &self,
        attempts: &mut dyn Attempts,
        found: &mut Found,
        places: &Places<'_>,
        steps: u32,
    ) -> anyhow::Result<Option<Offer>> {
        // A diff names files from where it is applied: here, or at the root for a script that is elsewhere.
        let here = std::env::current_dir().unwrap_or_default();
        let absolute = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let path = absolute.strip_prefix(&here).unwrap_or(&absolute);
        let path = &*path.to_string_lossy();
        let apply_file = places.patch.with_extension("apply.patch");
        let instruction_file = places.patch.with_extension("md");
        for file in [places.patch, &apply_file, &instruction_file] {
            remove_ours(file);
        }
        let mut run = |texts: &[(&str, &str)], found: &mut Found| {
            let all_for =
                |why: &str| -> Vec<_> { texts.iter().map(|_| Ok(Some(why.to_owned()))).collect() };
            if found.fit.stopped.is_some() {
                return all_for(NOT_RUN);
            }
            if found.is_shared() {
                return all_for("it was not run, as a launcher starts its ranks");
            }
            let ended = changed::misses(attempts, found, texts, steps);
            let known = |why: anyhow::Result<Option<String>>| match why {
                Err(error) if error.is::<Stopped>() => Ok(Some(NOT_RUN.to_owned())),
                other => other,
            };
            ended.into_iter().map(known).collect::<Vec<_>>()
        };
        // Stacks name the script as it was given.
        let ran: BTreeSet<usize> = [absolute.as_path(), &self.path]
            .into_iter()
            .zip(std::iter::repeat(found.plain.trace.as_ref()))
            .filter_map(|(path, trace)| Some(by_hand::lines_that_ran(trace?, path)))
            .flatten()
            .collect();
        let levers = found.by_hand_levers();
        let mut hand = by_hand::by_hand(path, &self.text, &levers, &ran, &found.switches());
        let changes_nothing = hand.missing.is_empty() && hand.changed == 0;
        let plan = places.plan.display().to_string();
        let applying = by_hand::applying(path, &self.text, &plan)
            .filter(|_| !levers.iter().any(Lever::needs_launcher));
        let mut texts: Vec<(&str, &str)> = Vec::new();
        texts.extend(applying.iter().map(|(_, text)| ("apply", text.as_str())));
        if !changes_nothing && hand.is_whole() {
            texts.push(("by-hand", &hand.script));
        }
        let mut tried = run(&texts, found).into_iter();
        let mut offer = None;
        if let Some((diff, text)) = applying {
            let why = tried.next().transpose()?.flatten();
            if let Some(head) = head_of_line(path, why.as_deref()) {
                files::write(&apply_file, (head + &diff).as_bytes())?;
                found.fit.apply_patch_file = Some(apply_file.display().to_string());
            }
            offer = why.is_none().then_some(Offer {
                text,
                applies: true,
            });
        }
        let why = if changes_nothing {
            Some("nothing of it is a change of this file".to_owned())
        } else if !hand.is_whole() {
            Some(format!(
                "it has no clear place for {}",
                hand.missing.join(", ")
            ))
        } else {
            let mut why = tried.next().transpose()?.flatten();
            // Some levers save less by hand.
            if why.is_some()
                && let Some(levers) = by_hand::coarser(&levers)
            {
                let coarser = by_hand::by_hand(path, &self.text, &levers, &ran, &found.switches());
                let texts = [("by-hand", coarser.script.as_str())];
                if coarser.is_whole() && run(&texts, found).remove(0)?.is_none() {
                    (hand, why) = (coarser, None);
                    hand.head.push(SLOWER.to_owned());
                }
            }
            why
        };
        if let Some(why) = why {
            let text = hand.instruction(path, &why, found.fit.apply_patch_file.as_deref());
            files::write(&instruction_file, text.as_bytes())?;
            found.fit.instruction_file = Some(instruction_file.display().to_string());
            found.fit.no_patch = Some(why);
        } else {
            files::write(places.patch, hand.text().as_bytes())?;
            found.fit.patch_file = Some((places.patch.display().to_string(), hand.changed));
            if offer.is_none() || !hand.waits {
                offer = Some(Offer {
                    text: hand.script,
                    applies: false,
                });
            }
        }
        Ok(offer)
    }

    /// Writes a patch into the script, and keeps it as it was beside it. The plan remembers it, for `--undo`.
    pub(crate) fn write(&self, offer: &Offer, plan: &mut PlanFile) -> anyhow::Result<PathBuf> {
        let path = self.path.display();
        let now = fs::read(&self.path).with_context(|| format!("cannot read {path}"))?;
        if now != self.text.as_bytes() {
            bail!("{path} has changed since the search began: --write has left it alone");
        }
        let original = original_of(&self.path);
        fs::copy(&self.path, &original)
            .with_context(|| format!("cannot write {}", original.display()))?;
        plan.written = Some(Written {
            sha256: digest(offer.text.as_bytes()),
            applies: offer.applies,
        });
        if let Err(error) = files::write(&self.path, offer.text.as_bytes()) {
            let _ = fs::remove_file(&original);
            return Err(error);
        }
        Ok(original)
    }
}

/// What stands above the line that applies a plan, which was run with it unless `why` says why not; `None` if it is not offered. It does
/// what `oomph run --plan` does, and that was run: where the time was over, that takes nothing from it.
fn head_of_line(path: &str, why: Option<&str>) -> Option<String> {
    match why {
        None => Some(String::new()),
        Some(NOT_RUN) => Some(format!(
            "{}{path}: it was run; {NOT_RUN} by this line\n",
            HEADS[0]
        )),
        Some(_) => None,
    }
}

/// Takes out of a script what `--write` has put into it, unless it was changed since.
pub(crate) fn undo(script: &Path, plan: &Path) -> anyhow::Result<()> {
    let path = script.display();
    let original = original_of(script);
    let (Ok(before), Ok(now)) = (fs::read(&original), fs::read(script)) else {
        bail!(
            "there is nothing to undo: {} is not there, or {path} is not",
            original.display()
        );
    };
    let written = fs::read_to_string(plan).ok();
    let written = written.and_then(|text| PlanFile::parse(&text).ok()?.written);
    let is_as_written = written.is_some_and(|written| written.sha256 == digest(&now));
    if !is_as_written && now != before {
        bail!(
            "{path} is not what --write made of it by {}: undoing would lose later changes. {} is how it was",
            plan.display(),
            original.display()
        );
    }
    files::write(script, &before)?;
    fs::remove_file(&original).with_context(|| format!("cannot remove {}", original.display()))
}

fn original_of(script: &Path) -> PathBuf {
    let mut name = script.as_os_str().to_owned();
    name.push(".orig");
    PathBuf::from(name)
}

/// Removes a file of an earlier search, which would be taken for one of this.
fn remove_ours(path: &Path) {
    let text = fs::read_to_string(path).unwrap_or_default();
    if HEADS.iter().any(|head| text.starts_with(head)) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> PlanFile {
        PlanFile::parse("format = \"oomph.plan/1\"").unwrap()
    }

    #[test]
    fn what_was_changed_meanwhile_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("train.py");
        fs::write(&script, "a = 1\n").unwrap();
        let original = Original::read(&script.to_string_lossy());
        original.expect_writable().unwrap();
        let offer = Offer {
            text: "a = 2\n".to_owned(),
            applies: false,
        };
        fs::write(&script, "a = 3\n").unwrap();
        let error = original.write(&offer, &mut plan()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("has changed since the search began"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&script).unwrap(), "a = 3\n");
        assert!(!original_of(&script).exists());
    }

    #[test]
    fn what_is_undone_is_what_was_written() {
        let place = tempfile::tempdir().unwrap();
        let (script, file) = (
            place.path().join("train.py"),
            place.path().join("plan.toml"),
        );
        fs::write(&script, "a = 1\r\n").unwrap();
        let original = Original::read(&script.to_string_lossy());
        let offer = Offer {
            text: "a = 2\r\n".to_owned(),
            applies: true,
        };
        let mut plan = plan();
        original.write(&offer, &mut plan).unwrap();
        fs::write(&file, plan.to_toml()).unwrap();
        assert!(original.expect_writable().is_err());
        // The plan of another search does not know what was written.
        let other = place.path().join("other.toml");
        fs::write(&other, self::plan().to_toml()).unwrap();
        assert!(undo(&script, &other).is_err());
        assert!(undo(&script, &place.path().join("none.toml")).is_err());
        undo(&script, &file).unwrap();
        assert_eq!(fs::read_to_string(&script).unwrap(), "a = 1\r\n");
        assert!(undo(&script, &file).is_err());
    }

    #[test]
    fn the_line_is_offered_where_time_was_over_too() {
        assert_eq!(head_of_line("a.py", None).as_deref(), Some(""));
        let late = head_of_line("a.py", Some(NOT_RUN)).unwrap();
        assert!(late.starts_with(HEADS[0]) && late.ends_with(" by this line\n"));
        assert_eq!(head_of_line("a.py", Some("it needs 5 GiB")), None);
    }

    #[test]
    fn files_of_others_are_not_removed() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("oomph-plan.md");
        for (text, stays) in [("# The plan for a.py", false), ("# My notes", true)] {
            fs::write(&file, text).unwrap();
            remove_ours(&file);
            assert_eq!(file.exists(), stays);
        }
    }
}
