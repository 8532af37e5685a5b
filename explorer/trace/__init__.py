"""Pure functions over records: the tree, roles, masks, findings and the verdict."""
