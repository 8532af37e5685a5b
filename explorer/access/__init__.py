"""Who may reach what: hosts, origins, headers, and the operator's token."""
