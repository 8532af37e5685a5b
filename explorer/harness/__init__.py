"""Known harnesses as data, and running one under a fresh rollout."""
