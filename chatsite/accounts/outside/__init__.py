"""Signing in with an account of another place: OpenID Connect or GitHub, on the shoulders of allauth.

`openid` believes a provider or does not, `adapter` decides whom an outside account is here, `naming` finds new people a
user name, `groups` lets the provider say who is in which group and who is staff.
"""
