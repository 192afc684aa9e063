"""The two forms that signing in from outside may need: a free user name, and letting go of an outside account."""

from __future__ import annotations

from dataclasses import dataclass

from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.forms import DisconnectForm as AllauthDisconnectForm
from allauth.socialaccount.forms import SignupForm as AllauthSignupForm
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.signals import social_account_removed

from chatsite.accounts.outside import naming


class SignUpForm(AllauthSignupForm):  # type: ignore[misc]  # allauth has no types
    """Asks for a user name alone: an address comes from the provider, who has verified it, or not at all.

    `taken_name` and `taken_email` say why it is asked; empty where that is not the reason.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["email"]
        wanted = get_adapter().wanted_name(self.sociallogin)
        self.taken_name = "" if naming.is_free(wanted) else wanted
        self.taken_email = get_adapter().taken_email(self.sociallogin)


@dataclass(frozen=True)
class Connected:
    """One outside account of the person who looks."""

    account: SocialAccount
    provider_name: str
    called: str  # there
    is_usable: bool  # False: the operator has switched that provider off


class DisconnectForm(AllauthDisconnectForm):  # type: ignore[misc]  # allauth has no types
    @property
    def connected(self) -> list[Connected]:
        names = {provider.sub_id: provider.name for provider in get_adapter().list_providers(self.request)}
        return [
            Connected(
                account,
                names.get(account.provider, account.provider),
                next(filter(None, map(account.extra_data.get, ("login", "preferred_username", "email", "name"))), ""),
                account.provider in names,
            )
            for account in self.accounts.order_by("pk")
        ]

    def save(self) -> None:
        account = self.cleaned_data["account"]
        if any(provider.sub_id == account.provider for provider in get_adapter().list_providers(self.request)):
            super().save()
        else:  # allauth would ask a provider that is not there any more
            account.delete()
            social_account_removed.send(sender=SocialAccount, request=self.request, socialaccount=account)
