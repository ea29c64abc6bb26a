//! What all callers of a function hand over, and what attributes are set to: constants that switch branches off.

use oomph_python_source::TextSize;
use rustc_hash::{FxHashMap, FxHashSet};

use super::calls::{Call, Parameter};
use super::collect::{DefinitionKind, Reference, Value};
use super::constant::Constant;
use super::{CALLED_BY_BASES, Node, Reach};

/// Parameters are followed through this many callers.
const MAX_CALLERS: usize = 6;

/// What is known of the callers of a project.
pub(super) struct Given<'r, 'p> {
    reach: &'r Reach<'p>,
    calls: FxHashMap<&'p str, Vec<(usize, &'p Call)>>,
    /// Names of what is handed on, rather than called, by group.
    handed_on: FxHashSet<(usize, &'p str)>,
    /// How often attributes of a name are set, by group.
    sets: FxHashMap<(usize, &'p str), usize>,
    /// Groups that set attributes whose names are made up while the program runs.
    sets_by_text: FxHashSet<usize>,
    known: FxHashMap<(Node, String), Option<Constant>>,
}

impl<'r, 'p> Given<'r, 'p> {
    pub(super) fn new(reach: &'r Reach<'p>) -> Self {
        let mut given = Self {
            reach,
            calls: FxHashMap::default(),
            handed_on: FxHashSet::default(),
            sets: FxHashMap::default(),
            sets_by_text: FxHashSet::default(),
            known: FxHashMap::default(),
        };
        for (file, each) in reach.files.iter().enumerate() {
            let group = reach.groups[file];
            let says = each.says;
            let mut called: FxHashSet<(TextSize, &str)> = FxHashSet::default();
            for call in &says.calls {
                called.insert((call.at, &call.name));
                let is_run = call.of.is_none_or(|of| reach.reached.contains(&(file, of)));
                if is_run && !reach.is_dead(file, call.at) {
                    given
                        .calls
                        .entry(&call.name)
                        .or_default()
                        .push((file, call));
                }
            }
            let of_definitions = says.all.iter().flat_map(|each| &each.references);
            for mention in says.top.iter().chain(of_definitions) {
                let parts: &[String] = match &mention.what {
                    Reference::Name(path) | Reference::Own(path) => path,
                    Reference::Member(name) => std::slice::from_ref(name),
                    Reference::Of(path, name) => {
                        given.handed_on.extend(
                            path.iter()
                                .take(path.len() - 1)
                                .map(|part| (group, part.as_str())),
                        );
                        std::slice::from_ref(name)
                    }
                    Reference::AnyOwn
                    | Reference::AnyOf(_)
                    | Reference::AnyMember
                    | Reference::Like(..)
                    | Reference::Taking(_) => continue,
                };
                let Some((last, rest)) = parts.split_last() else {
                    continue;
                };
                given
                    .handed_on
                    .extend(rest.iter().map(|part| (group, part.as_str())));
                if !called.contains(&(mention.at, last.as_str())) {
                    given.handed_on.insert((group, last));
                }
            }
            for import in &says.imports {
                if let Some(last) = import.parts.last()
                    && *last != import.name
                    && import.parts.join(".") != import.name
                {
                    given.handed_on.insert((group, last));
                }
            }
            for (name, times) in &says.sets {
                *given.sets.entry((group, name)).or_default() += times;
            }
            if says.sets_by_text {
                given.sets_by_text.insert(group);
            }
        }
        given
    }

    /// What parameters and attributes of a file are: `f(name)`, `Class.method(name)`, `Class.name`.
    pub(super) fn constants(&mut self, file: usize, into: &mut FxHashMap<String, Constant>) {
        let reach = self.reach;
        let says = reach.files[file].says;
        self.of_imported(file, into);
        for (at, definition) in says.all.iter().enumerate() {
            if !reach.reached.contains(&(file, at)) {
                continue;
            }
            let owner = match &definition.kind {
                DefinitionKind::Class { values, .. } => {
                    for (name, ..) in values {
                        if let Some(value) = self.attribute((file, at), name, 0) {
                            into.insert(format!("{}.{name}", definition.name), value);
                        }
                    }
                    continue;
                }
                DefinitionKind::Method(class) => format!("{}.", says.all[*class].name),
                DefinitionKind::Function => String::new(),
            };
            for parameter in definition.signature.all() {
                if let Some(value) = self.parameter((file, at), parameter, 0) {
                    let key = format!("{owner}{}({})", definition.name, parameter.name);
                    into.insert(key, value);
                }
            }
        }
    }

    /// What the attributes of objects are that a file imports: `config.gpus` of `config = Config()`.
    fn of_imported(&mut self, file: usize, into: &mut FxHashMap<String, Constant>) {
        let reach = self.reach;
        for (import, to) in reach.files[file]
            .says
            .imports
            .iter()
            .zip(&reach.resolved[file])
        {
            let Some((to, used)) = to else { continue };
            let Some(name) = import.parts.get(*used).filter(|_| !import.star) else {
                continue;
            };
            let says = reach.files[*to].says;
            let Some(Some(class)) = says.variables.get(name) else {
                continue;
            };
            let Some(class) = reach
                .class_named(*to, class)
                .filter(|_| !says.rebound.contains(name))
            else {
                continue;
            };
            let DefinitionKind::Class { values, .. } = &reach.definition(class).kind else {
                continue;
            };
            for (attribute, ..) in values {
                if let Some(value) = self.attribute(class, attribute, 0) {
                    into.insert(format!("{}.{attribute}", import.name), value);
                }
            }
        }
    }

    /// What every caller hands over for a parameter.
    fn parameter(&mut self, node: Node, parameter: &Parameter, depth: usize) -> Option<Constant> {
        // Most have no default, or one that is no constant, and are handed what is not known.
        let key = (node, parameter.name.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        if depth > MAX_CALLERS {
            return None;
        }
        self.known.insert(key.clone(), None);
        let found = self.look_up(node, parameter, depth);
        self.known.insert(key, found.clone());
        found
    }

    fn look_up(&mut self, node: Node, parameter: &Parameter, depth: usize) -> Option<Constant> {
        let sites = self.sites(node)?;
        let definition = self.reach.definition(node);
        let bound = usize::from(definition.signature.is_bound);
        let place = definition.signature.positional[bound..]
            .iter()
            .position(|each| each.name == parameter.name);
        let mut all: Option<Constant> = None;
        for (file, call) in sites {
            let by_name = call
                .keywords
                .iter()
                .find(|(name, _)| *name == parameter.name);
            let value = match (by_name, place) {
                (Some((_, value)), _) => value.clone(),
                (None, Some(_)) if call.starred => return None,
                (None, Some(at)) if at < call.positional.len() => call.positional[at].clone(),
                _ if call.rest.is_none()
                    || self.never_hands_on(file, call, &parameter.name, depth) =>
                {
                    parameter.default.clone()?
                }
                _ => return None,
            };
            let value = self.resolve(file, call.of, &value, depth)?;
            match &all {
                None => all = Some(value),
                Some(known) if *known == value => {}
                Some(_) => return None,
            }
        }
        all
    }

    /// Whether `**rest` of a call has no such name: it is what the function around takes, and none of its callers has it.
    fn never_hands_on(&self, file: usize, call: &Call, name: &str, depth: usize) -> bool {
        let Some(of) = call.of else { return false };
        let signature = &self.reach.definition((file, of)).signature;
        depth <= MAX_CALLERS
            && call.rest.is_some()
            && call.rest == signature.rest
            && signature.rest_is_handed_on
            && !signature.all().any(|each| each.name == name)
            && self.sites((file, of)).is_some_and(|sites| {
                sites.into_iter().all(|(from, site)| {
                    !site.keywords.iter().any(|(each, _)| each == name)
                        && (site.rest.is_none() || self.never_hands_on(from, site, name, depth + 1))
                })
            })
    }

    fn resolve(
        &mut self,
        file: usize,
        of: Option<usize>,
        value: &Value,
        depth: usize,
    ) -> Option<Constant> {
        let reach = self.reach;
        let definition = of.map(|of| &reach.files[file].says.all[of]);
        match value {
            Value::Known(constant) => Some(constant.clone()),
            Value::Parameter(name) => {
                let parameter = definition?
                    .signature
                    .all()
                    .find(|each| each.name == *name)?;
                self.parameter((file, of?), parameter, depth + 1)
            }
            Value::Own(name) => match definition?.kind {
                DefinitionKind::Method(class) => self.attribute((file, class), name, depth + 1),
                _ => None,
            },
            Value::Unknown => None,
        }
    }

    /// What an attribute of a class's objects is, if one statement sets it.
    fn attribute(&mut self, class: Node, name: &str, depth: usize) -> Option<Constant> {
        let reach = self.reach;
        let group = reach.groups[class.0];
        let DefinitionKind::Class { values, .. } = &reach.definition(class).kind else {
            return None;
        };
        let mut of_name = values.iter().filter(|(each, ..)| each == name);
        let (Some((_, value, of)), None) = (of_name.next(), of_name.next()) else {
            return None;
        };
        if *value == Value::Unknown
            || depth > MAX_CALLERS
            || self.sets.get(&(group, name)) != Some(&1)
            || self.sets_by_text.contains(&group)
            || reach.foreign_base_above(class, 0)
            || reach.is_taken_by_text(class)
        {
            return None;
        }
        self.resolve(class.0, Some(*of), value, depth)
    }

    /// The calls of a function or method, if nothing else can call it.
    fn sites(&self, node: Node) -> Option<Vec<(usize, &'p Call)>> {
        let reach = self.reach;
        let definition = reach.definition(node);
        let group = reach.groups[node.0];
        let is_init = definition.name == "__init__";
        let is_special = definition.name.starts_with("__") && !is_init;
        if definition.handed_on
            || definition.signature.is_odd
            || is_special
            || CALLED_BY_BASES.contains(&definition.name.as_str())
            || matches!(definition.name.as_str(), "main")
            || reach.is_taken_by_text(node)
        {
            return None;
        }
        let mut wanted: Vec<(&str, Node)> = Vec::new();
        let mut calls: Vec<(usize, &'p Call)> = Vec::new();
        match definition.kind {
            DefinitionKind::Method(class) if is_init => {
                let class = (node.0, class);
                let made = reach.definition(class);
                if made.handed_on || made.signature.is_odd {
                    return None;
                }
                wanted.push((&made.name, class));
                let family = reach.families.root(class);
                let others = reach.families.members.get(&family);
                let others: Vec<Node> = others
                    .into_iter()
                    .flatten()
                    .copied()
                    .filter(|other| *other != class && reach.is_made_from(*other, class, 0))
                    .collect();
                for other in &others {
                    if !reach.has_method(*other, "__init__") {
                        wanted.push((&reach.definition(*other).name, *other));
                    }
                }
                // `super().__init__(…)` of those that are made from it.
                let of_bases = self.calls.get("__init__");
                calls.extend(
                    of_bases
                        .into_iter()
                        .flatten()
                        .copied()
                        .filter(|(file, call)| {
                            call.of
                                .is_some_and(|of| others.contains(&reach.class_of((*file, of))))
                        }),
                );
            }
            DefinitionKind::Method(class) => {
                if reach.foreign_base_above((node.0, class), 0) {
                    return None;
                }
                wanted.push((&definition.name, node));
            }
            _ => wanted.push((&definition.name, node)),
        }
        for (name, wanted) in wanted {
            if self.handed_on.contains(&(group, name)) {
                return None;
            }
            let called = self.calls.get(name).into_iter().flatten().copied();
            calls.extend(called.filter(|(file, call)| {
                let from = reach.groups[*file];
                let hears = reach.heard.get(&from);
                (from == group || hears.is_some_and(|all| all.contains(&group)))
                    // Another class of that name.
                    && reach.callee(*file, call).is_none_or(|found| found == wanted)
            }));
        }
        (!calls.is_empty()).then_some(calls)
    }
}
