"""How a running Rebaser is looked at: health, metrics, settings in force, and a page for people."""
