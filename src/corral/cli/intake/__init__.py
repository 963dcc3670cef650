"""Commands about submissions through a broker."""
