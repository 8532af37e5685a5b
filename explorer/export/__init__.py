"""What leaves: judged rollouts, and later files and datasets."""
