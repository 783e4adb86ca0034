import { Link } from "@tanstack/react-router";
import { CircleCheck, CircleHelp, CircleX, ShieldQuestion } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "@/api/client";
import { useAnswerAsk } from "@/api/queries/conversation";
import { useSession } from "@/api/queries/sessions";
import type { Ask } from "@/api/types";
import { formatRoughDuration } from "@/lib/format";
import { markHidden } from "@/lib/hidden-characters";
import { Button } from "@/ui/button";
import { Ago, useNow } from "@/ui/time";
import { showError } from "@/ui/toast";
import { VisibleText } from "@/ui/visible-text";
import { AllowButton } from "./allow";
import { AskForm } from "./ask-form";
import { Fold } from "./fold";
import { formatValue, listOrEmpty, recordOrEmpty, textOrEmpty, toolCallOf, withoutRepeats } from "./message-parts";
import { isDeniedByPolicy } from "./policy-denials";
import { RejectionForm } from "./rejection-form";
import { CallDetails } from "./tool-call";
import { useName } from "./user-names";

export interface AskOption {
  id: string;
  name: string;
  kind: string;
}

export function optionsOf(ask: Ask): AskOption[] {
  return listOrEmpty(ask.detail.options).flatMap((option) => {
    const { optionId, name, kind } = recordOrEmpty(option);
    return typeof optionId === "string"
      ? [{ id: optionId, name: textOrEmpty(name) || optionId, kind: textOrEmpty(kind) }]
      : [];
  });
}

/** A question or permission request of the agent or the platform, answered in place. */
export function AskRow({ ask }: { ask: Ask }) {
  return ask.status === "pending" ? <PendingAsk ask={ask} /> : <SettledAsk ask={ask} />;
}

/** Answer a question or permission request, and report an error. */
export const useAnswer = () => useAnswerAsk({ onError: showError("Could not send the answer") });

function PendingAsk({ ask }: { ask: Ask }) {
  const answer = useAnswer();
  const send = (given: Schemas["Answer"]) => answer.mutate({ askId: ask.id, answer: given });
  const [rejectionOption, setRejectionOption] = useState<string | null>(null);
  const isFromPlatform = textOrEmpty(ask.detail.by) !== "";
  const hasForm = ask.kind === "question" && !isFromPlatform;
  const options = optionsOf(ask);
  const call = ask.detail.toolCall ? withoutRepeats(toolCallOf(recordOrEmpty(ask.detail.toolCall)), ask.title) : null;
  const Icon = ask.kind === "permission" ? ShieldQuestion : CircleHelp;
  const busy = answer.isPending || answer.isSuccess;
  const isSending = (body: Schemas["Answer"]) =>
    busy && answer.variables?.answer.optionId === body.optionId && answer.variables.answer.decision === body.decision;
  return (
    <section
      aria-label={markHidden(ask.title)}
      className="rounded-lg border border-warn bg-surface"
      data-testid="ask"
      data-ask-of={ask.sessionId}
    >
      <div className="flex items-start gap-2 rounded-t-lg bg-warn-soft px-3 py-2">
        <Icon className="mt-0.5 size-4 shrink-0 text-warn" aria-hidden />
        <div className="min-w-0 flex-1">
          <p className="text-xs text-soft">
            {isFromPlatform
              ? "Question from Sandyard"
              : ask.kind === "permission"
                ? "Permission request"
                : "Question from the agent"}
            {ask.expiresAt && (
              <Countdown until={ask.expiresAt} outcome={ask.kind === "permission" ? "denied" : "declined"} />
            )}
          </p>
          <h3 className="text-[13.5px] font-medium break-words whitespace-pre-wrap">
            <VisibleText text={ask.title} />
          </h3>
        </div>
      </div>
      <div className="flex flex-col gap-2 px-3 py-2">
        {call && <CallDetails call={call} />}
        <Reason ask={ask} />
        {hasForm ? (
          <AskForm
            schema={ask.detail.form}
            title={ask.title}
            busy={busy}
            onAnswer={(content) => send({ content })}
            onDecline={() => send({ decision: "reject" })}
          />
        ) : rejectionOption !== null ? (
          <RejectionForm
            busy={busy}
            onDeny={(message) => send({ optionId: rejectionOption, ...(message && { message }) })}
            onCancel={() => setRejectionOption(null)}
          />
        ) : (
          <div className="flex flex-wrap gap-2">
            {options.map((option) => {
              const body = { optionId: option.id };
              const isRejection = option.kind.startsWith("reject");
              const asksWhy = ask.kind === "permission" && option.kind === "reject_once";
              return (
                <Button
                  key={option.id}
                  look={isRejection ? "danger" : option.kind === "allow_once" ? "primary" : "plain"}
                  busy={isSending(body)}
                  disabled={busy}
                  onClick={() => (asksWhy ? setRejectionOption(option.id) : send(body))}
                  className="!h-auto min-h-8 max-w-full py-1 text-left [overflow-wrap:anywhere] !whitespace-normal"
                >
                  <span className="min-w-0">
                    <VisibleText text={option.name} />
                  </span>
                </Button>
              );
            })}
            {!options.length && (
              <Button look="danger" busy={busy} onClick={() => send({ decision: "reject" })}>
                Deny
              </Button>
            )}
          </div>
        )}
      </div>
    </section>
  );
}

/** Why the user is asked, with a link to the setting that controls it. */
function Reason({ ask }: { ask: Ask }) {
  const reason = textOrEmpty(ask.detail.reason);
  const projectId = useSession(ask.sessionId, { enabled: reason !== "" }).data?.projectId;
  if (!reason) return null;
  return (
    <p className="text-xs text-soft">
      <VisibleText text={reason} />{" "}
      {projectId && (
        <Link
          to="/projects/$projectId"
          params={{ projectId }}
          search={{ tab: "agent" }}
          className="text-accent underline underline-offset-2"
        >
          Change permissions
        </Link>
      )}
    </p>
  );
}

function Countdown({ until, outcome }: { until: string; outcome: string }) {
  const left = (Date.parse(until) - useNow()) / 1000;
  return (
    <span className="tabular-nums">
      {" · "}
      {left > 0 ? `${outcome} automatically in ${formatRoughDuration(left)}` : `${outcome}: not answered in time`}
    </span>
  );
}

const DECISION_LABELS: Record<string, string> = {
  allow_once: "Allowed",
  allow_always: "Always allowed",
  reject_once: "Denied",
  reject_always: "Always denied",
  allow: "Allowed",
  reject: "Denied",
};

function SettledAsk({ ask }: { ask: Ask }) {
  const name = useName();
  const { text, accepted } = outcomeOf(ask);
  const Icon = accepted ? CircleCheck : CircleX;
  const call = ask.detail.toolCall ? toolCallOf(recordOrEmpty(ask.detail.toolCall)) : null;
  const reason = textOrEmpty(ask.detail.reason);
  const given = answersOf(ask);
  const by =
    ask.decidedBy === "person" || ask.decidedBy === "overruled"
      ? name(ask.userId)
      : ask.decidedBy === "policy"
        ? "the project's policy"
        : null;
  return (
    <Fold
      id={ask.id}
      head={
        <>
          <Icon className={accepted ? "size-3.5 shrink-0 text-ok" : "size-3.5 shrink-0 text-bad"} aria-hidden />
          <span className="shrink-0 font-medium">
            <VisibleText text={text} />
          </span>
          <span className="min-w-0 truncate text-soft">
            <VisibleText text={ask.title} />
          </span>
          {given.length > 0 && (
            <span className="min-w-0 shrink-[0.5] truncate font-medium">
              {given.map(([, value]) => value).join(", ")}
            </span>
          )}
          {by && (
            <span className="ml-auto hidden shrink-0 text-xs text-faint sm:inline">by {by === "You" ? "you" : by}</span>
          )}
        </>
      }
      more={() => (
        <div className="ml-5 flex flex-col gap-2 border-l py-1.5 pl-3 text-[13px]">
          <p className="break-words whitespace-pre-wrap">
            <VisibleText text={ask.title} />
          </p>
          {call && <CallDetails call={withoutRepeats(call, ask.title)} />}
          <AnswerContent ask={ask} />
          <p className="text-xs text-soft">
            {text}
            {by && ` by ${by === "You" ? "you" : by}`}
            {reason && `: ${markHidden(reason)}`}
            {ask.answeredAt && (
              <>
                {" · "}
                <Ago at={ask.answeredAt} />
              </>
            )}
          </p>
          {isDeniedByPolicy(ask) && (
            <div>
              <AllowButton asks={[ask]} />
            </div>
          )}
        </div>
      )}
    />
  );
}

/** The answers to a question's form, by field. */
function answersOf(ask: Ask): [field: string, value: string][] {
  return Object.entries(recordOrEmpty(ask.answer?.content)).map(([field, value]) => [
    field,
    Array.isArray(value) ? value.map(formatValue).join(", ") : formatValue(value),
  ]);
}

function AnswerContent({ ask }: { ask: Ask }) {
  const content = answersOf(ask);
  if (!content.length) return null;
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-3 gap-y-0.5">
      {content.map(([field, value]) => (
        <div key={field} className="contents">
          <dt className="text-soft">{field}</dt>
          <dd className="min-w-0 break-words whitespace-pre-wrap">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function outcomeOf(ask: Ask): { text: string; accepted: boolean } {
  if (ask.status === "expired") return { text: "Not answered in time", accepted: false };
  if (ask.status === "cancelled") return { text: "Cancelled", accepted: false };
  const answer = ask.answer ?? {};
  if (ask.decidedBy === "overruled") return { text: "Allowed from now on", accepted: true };
  if (answer.action === "accept") return { text: "Answered", accepted: true };
  if (answer.action) return { text: "Declined", accepted: false };
  const kind = textOrEmpty(answer.kind) || textOrEmpty(answer.decision);
  const chosen = optionsOf(ask).find((askOption) => askOption.id === answer.optionId);
  const answerText = ask.kind === "question" && chosen ? chosen.name : undefined;
  return { text: answerText ?? DECISION_LABELS[kind] ?? chosen?.name ?? "Denied", accepted: kind.startsWith("allow") };
}
