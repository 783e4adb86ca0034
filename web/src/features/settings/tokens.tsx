import { KeySquare, Plus } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "@/api/client";
import { fieldError } from "@/api/errors";
import { useMe } from "@/api/queries/account";
import { useCreateToken, useRevokeToken, useTokens } from "@/api/queries/users";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { SubmitForm } from "@/ui/form";
import { Section } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError } from "@/ui/toast";

const NEVER = "never";
const EXPIRY = [
  { value: "7", label: "In 7 days" },
  { value: "30", label: "In 30 days" },
  { value: "90", label: "In 90 days" },
  { value: "365", label: "In a year" },
  { value: NEVER, label: "Never", detail: "Until it is revoked." },
];

export function Tokens() {
  const [creating, setCreating] = useState(false);
  const authentication = useMe().data?.means;
  const query = useTokens();
  const revoke = useRevokeToken({ onError: showError("Could not revoke the token") });
  return (
    <Section
      title="API tokens"
      description="For the command line, scripts and signing in. Each token has all your permissions."
      actions={
        <Button size="sm" onClick={() => setCreating(true)}>
          <Plus className="size-3.5" aria-hidden /> New token
        </Button>
      }
    >
      <Loaded query={query}>
        {(tokens) =>
          tokens.length ? (
            <ul className="divide-y">
              {tokens.map((token) => (
                <li key={token.id} className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 py-2.5">
                  <div className="min-w-0 flex-1 basis-48">
                    <p className="flex flex-wrap items-center gap-2 text-[13px] font-medium">
                      {token.name} <code className="font-mono text-xs font-normal text-soft">{token.hint}…</code>
                      <Expiry token={token} />
                      {authentication === `token:${token.id}` && <Badge tone="info">current sign-in</Badge>}
                    </p>
                    <p className="text-xs text-soft">
                      created <Ago at={token.createdAt} /> ·{" "}
                      {token.lastUsedAt ? <LastUsed at={token.lastUsedAt} /> : "not used yet"}
                    </p>
                  </div>
                  <Confirm
                    trigger={
                      <Button size="sm" look="danger" aria-label={`Revoke ${token.name}`}>
                        Revoke
                      </Button>
                    }
                    title={`Revoke ${token.name}?`}
                    action="Revoke"
                    onConfirm={() => revoke.mutateAsync(token.id)}
                  >
                    The token stops working immediately. This cannot be undone.
                  </Confirm>
                </li>
              ))}
            </ul>
          ) : (
            <Empty title="No tokens" icon={<KeySquare className="size-5" aria-hidden />} />
          )
        }
      </Loaded>
      <NewToken open={creating} onOpenChange={setCreating} />
    </Section>
  );
}

function LastUsed({ at }: { at: string }) {
  return (
    <>
      last used <Ago at={at} />
    </>
  );
}

function Expiry({ token }: { token: Schemas["TokenView"] }) {
  if (!token.expiresAt) return null;
  const date = new Date(token.expiresAt);
  return date.getTime() < Date.now() ? (
    <Badge tone="bad">expired</Badge>
  ) : (
    <Badge title={date.toLocaleString()}>until {date.toLocaleDateString()}</Badge>
  );
}

function NewToken({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const create = useCreateToken();
  const show = (next: boolean) => {
    if (!next) {
      create.reset();
      setName("");
    }
    onOpenChange(next);
  };
  const submit = () => {
    const expiresAt = days === NEVER ? null : new Date(Date.now() + Number(days) * 86_400_000).toISOString();
    create.mutate({ name: name.trim(), expiresAt });
  };
  return (
    <Dialog
      open={open}
      onOpenChange={show}
      title={create.data ? create.data.name : "New API token"}
      description={create.data ? "Copy the token now. It is not shown again." : undefined}
    >
      {create.data ? (
        <div className="flex flex-col gap-3">
          <div className="flex items-center gap-2 rounded-md border bg-sunken px-3 py-2">
            <code className="min-w-0 flex-1 font-mono text-xs break-all" data-testid="token-value">
              {create.data.value}
            </code>
            <CopyButton text={create.data.value} label="Copy token" />
          </div>
          <div className="flex justify-end">
            <Button look="primary" onClick={() => show(false)}>
              Done
            </Button>
          </div>
        </div>
      ) : (
        <SubmitForm
          columns
          busy={create.isPending}
          error={create.error}
          ready={Boolean(name.trim())}
          submitLabel="Create token"
          onSubmit={submit}
          onCancel={() => show(false)}
        >
          <Field label="Name" hint="Where it will be used." error={fieldError(create.error, "name")}>
            {(control) => (
              <Input
                {...control}
                autoFocus
                placeholder="laptop"
                value={name}
                onChange={(event) => setName(event.target.value)}
              />
            )}
          </Field>
          <Field label="Expires" error={fieldError(create.error, "expiresAt")}>
            {(control) => <Select {...control} value={days} onChange={setDays} choices={EXPIRY} />}
          </Field>
        </SubmitForm>
      )}
    </Dialog>
  );
}
