import { ArrowUpFromLine } from "lucide-react";
import { isAhead, useCheckout, useGitStatus } from "@/api/queries/git";
import { Button } from "@/ui/button";

/** Push unpushed commits. Renders nothing if there are none, or if there is no checkout. */
export function PushButton({
  sandboxId,
  busy,
  disabled,
  onClick,
}: {
  sandboxId: string;
  busy: boolean;
  disabled: boolean;
  onClick: () => void;
}) {
  const checkout = useCheckout(sandboxId);
  const status = useGitStatus(sandboxId);
  if (!busy && !(checkout.data && isAhead(checkout.data, status.data))) return null;
  return (
    <Button size="sm" busy={busy} disabled={disabled} onClick={onClick}>
      {!busy && <ArrowUpFromLine className="size-3.5" aria-hidden />}
      Push new commits
    </Button>
  );
}
