"""Parts of the configuration that belong to a site: its prices, and how its records are protected."""
