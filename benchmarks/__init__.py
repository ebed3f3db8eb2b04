"""What Rebaser costs, each figure beside its limit measured in the same run."""
