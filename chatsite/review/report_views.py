"""The list of what owners reported, and the page on which a reviewer says what was made of one report.

Neither shows what anybody wrote, comments included: that takes an opening, see `views`. For whoever may not review, and
for all while the policy is off, they do not exist.
"""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from chatsite.accounts.models import User
from chatsite.review import actions, reports
from chatsite.review.forms import OutcomeForm
from chatsite.review.views import PAGE_ROWS

STATES = {"": "Open", "handled": "Handled"}


@require_GET
@never_cache
def index(request: HttpRequest) -> HttpResponse:
    """Reports that nobody has handled yet, or with `state=handled` the others; newest first."""
    if not actions.may_review(request.user):
        raise Http404
    state = request.GET.get("state", "")
    if state not in STATES:
        state = ""
    found = reports.reports_for(request.user).filter(outcome__isnull=state == "")
    page = Paginator(found, PAGE_ROWS).get_page(request.GET.get("page"))
    return render(request, "review/reports.html", {"page": page, "state": state, "states": STATES.items()})


@require_http_methods(["GET", "POST"])
@never_cache
def report(request: HttpRequest, report_id: int) -> HttpResponse:
    """GET shows the report's facts; POST marks it handled, or with `open_again` takes that back."""
    found = reports.report_for(request.user, report_id)
    reviewer = cast(User, request.user)
    form = OutcomeForm(request.POST if request.method == "POST" else None)
    refusal, status = "", 200
    if request.method == "POST" and "open_again" in request.POST:
        reports.reopen(reviewer, report_id)
        messages.success(request, "The report is open again.")
        return redirect("review:report", report_id)
    if request.method == "POST" and not form.is_valid():
        status = 400
    elif request.method == "POST":
        try:
            reports.handle(reviewer, report_id, form.cleaned_data["note"])
        except reports.AlreadyHandled as already:
            found = reports.report_for(reviewer, report_id)
            refusal, status = str(already), 409
        else:
            messages.success(request, "The report is handled; its owner sees that under the answer.")
            return redirect("review:reports")
    context = {"report": found, "form": form, "refusal": refusal}
    return render(request, "review/report.html", context, status=status)
