"""What connects Corral with systems of others: brokers that hold submissions. Knows types of the API only."""
