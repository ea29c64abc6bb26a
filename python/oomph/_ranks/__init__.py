"""Jobs of several ranks: how launchers' processes are recorded, forked and rehearsed."""
