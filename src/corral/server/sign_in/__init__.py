"""Sign-in with OpenID Connect: people by an identity provider, programs by tokens of a CI system or of Kubernetes."""
