"""What runs on a bare host before there is an agent, and how it is sent there."""
