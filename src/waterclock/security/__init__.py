"""Who asks, and what they may do: credentials, certificates, tokens, rights and quotas.

Rights and quotas decide and know no clock. The secure folder is the one place that is read and
written. Cryptography is loaded where it is first needed: a client with a credential needs none.
"""
