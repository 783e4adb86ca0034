import { useAllowAsks, useSessionAsks } from "@/api/queries/conversation";
import type { Ask } from "@/api/types";
import { markHidden } from "@/lib/hidden-characters";
import { Button } from "@/ui/button";
import { showError } from "@/ui/toast";
import { textOrEmpty } from "./message-parts";
import { lastDenied } from "./policy-denials";

/** Allow what the project's policy denied, for the rest of the session, and resume the agent. */
export function AllowButton({ asks }: { asks: readonly Ask[] }) {
  const allow = useAllowAsks({ onError: showError("Could not allow the action") });
  const patterns = asks.map((ask) => textOrEmpty(ask.detail.pattern)).join(", ");
  return (
    <Button
      size="sm"
      busy={allow.isPending}
      disabled={allow.isSuccess}
      title={`Allow everything that matches ${markHidden(patterns)} for the rest of this session.`}
      onClick={() => allow.mutate(asks)}
    >
      Allow and continue
    </Button>
  );
}

/** Offer to allow what the policy denied, for an attempt or a turn that ended because of the denial. */
export function AllowDenied({ sessionId }: { sessionId: string }) {
  const asks = useSessionAsks(sessionId).data ?? [];
  const refused = lastDenied(asks);
  return refused.length ? <AllowButton asks={refused} /> : null;
}
