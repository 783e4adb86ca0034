import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import type { Ask } from "@/api/types";
import { Button } from "@/ui/button";
import { failed } from "@/ui/toast";
import { words } from "./parts";
import { sessionAsks } from "./queries";
import { refusedLast } from "./refused";

/** Allow what the project's policy denied, for the rest of the session, and resume the agent. */
export function AllowButton({ asks }: { asks: readonly Ask[] }) {
  const client = useQueryClient();
  const allow = useMutation({
    mutationFn: async () => {
      for (const [index, ask] of asks.entries()) {
        const body = { resume: index === asks.length - 1 };
        await got(api.POST("/api/v1/asks/{ask_id}/allow", { params: { path: { ask_id: ask.id } }, body }));
      }
    },
    onError: failed("Could not allow the action"),
    onSettled: () => client.invalidateQueries({ queryKey: ["asks"] }),
  });
  const patterns = asks.map((ask) => words(ask.detail.pattern)).join(", ");
  return (
    <Button
      size="sm"
      busy={allow.isPending}
      disabled={allow.isSuccess}
      title={`Allow everything that matches ${patterns} for the rest of this session.`}
      onClick={() => allow.mutate()}
    >
      Allow and continue
    </Button>
  );
}

/** Offer to allow what the policy denied, for an attempt or a turn that ended because of the denial. */
export function AllowRefused({ sessionId }: { sessionId: string }) {
  const asks = useQuery(sessionAsks(sessionId)).data ?? [];
  const refused = refusedLast(asks);
  return refused.length ? <AllowButton asks={refused} /> : null;
}
