"""The planner: asked from here (`planner`), thinking over there (`thinking`), speaking like this (`frames`)."""
