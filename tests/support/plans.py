"""Plan files."""


def plan(tmp_path, *levers, head=""):
    lines = ['format = "oomph.plan/1"', head]
    for name, parameters in levers:
        lines += ["[[lever]]", f'name = "{name}"']
        lines += [f"{key} = {_toml(value)}" for key, value in parameters.items()]
    path = tmp_path / "plan.toml"
    path.write_text("\n".join(lines))
    return str(path)


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
