import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { KeySquare, Plus } from "lucide-react";
import { type FormEvent, useState } from "react";
import { all, api, got, type Schemas } from "@/api/client";
import { me } from "@/api/queries";
import { fault, overall } from "@/lib/problems";
import { Section } from "@/shell/page";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { failed } from "@/ui/toast";

const FOR_EVER = "never";
const EXPIRY = [
  { value: "7", label: "In 7 days" },
  { value: "30", label: "In 30 days" },
  { value: "90", label: "In 90 days" },
  { value: "365", label: "In a year" },
  { value: FOR_EVER, label: "Never", detail: "Until it is revoked." },
];

export function Tokens() {
  const client = useQueryClient();
  const [making, setMaking] = useState(false);
  const means = useQuery(me).data?.means;
  const query = useQuery({
    queryKey: ["tokens"],
    queryFn: () => all((cursor) => got(api.GET("/api/v1/tokens", { params: { query: { cursor, limit: 200 } } }))),
  });
  const revoke = useMutation({
    mutationFn: (id: string) => got(api.DELETE("/api/v1/tokens/{token_id}", { params: { path: { token_id: id } } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["tokens"] }),
    onError: failed("Could not revoke the token"),
  });
  return (
    <Section
      title="API tokens"
      description="For the command line, scripts and signing in. Each token has all your permissions."
      actions={
        <Button size="sm" onClick={() => setMaking(true)}>
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
                      {means === `token:${token.id}` && <Badge tone="info">current sign-in</Badge>}
                    </p>
                    <p className="text-xs text-soft">
                      created <Ago at={token.createdAt} /> ·{" "}
                      {token.lastUsedAt ? <Used at={token.lastUsedAt} /> : "not used yet"}
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
      <NewToken open={making} onOpenChange={setMaking} />
    </Section>
  );
}

function Used({ at }: { at: string }) {
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
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const make = useMutation({
    mutationFn: () => {
      const expiresAt = days === FOR_EVER ? null : new Date(Date.now() + Number(days) * 86_400_000).toISOString();
      return got(api.POST("/api/v1/tokens", { body: { name: name.trim(), expiresAt } }));
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ["tokens"] }),
  });
  const show = (next: boolean) => {
    if (!next) {
      make.reset();
      setName("");
    }
    onOpenChange(next);
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (name.trim() && !make.isPending) make.mutate();
  };
  return (
    <Dialog
      open={open}
      onOpenChange={show}
      title={make.data ? make.data.name : "New API token"}
      description={make.data ? "Copy the token now. It is not shown again." : undefined}
    >
      {make.data ? (
        <div className="flex flex-col gap-3">
          <div className="flex items-center gap-2 rounded-md border bg-sunken px-3 py-2">
            <code className="min-w-0 flex-1 font-mono text-xs break-all" data-testid="token-value">
              {make.data.value}
            </code>
            <CopyButton text={make.data.value} label="Copy token" />
          </div>
          <div className="flex justify-end">
            <Button look="primary" onClick={() => show(false)}>
              Done
            </Button>
          </div>
        </div>
      ) : (
        <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
          <Field label="Name" hint="Where it will be used." error={fault(make.error, "name")}>
            {(wear) => (
              <Input
                {...wear}
                autoFocus
                placeholder="laptop"
                value={name}
                onChange={(event) => setName(event.target.value)}
              />
            )}
          </Field>
          <Field label="Expires" error={fault(make.error, "expiresAt")}>
            {(wear) => <Select {...wear} value={days} onChange={setDays} choices={EXPIRY} />}
          </Field>
          {make.error && (
            <p role="alert" className="text-[13px] text-bad sm:col-span-2">
              {overall(make.error)}
            </p>
          )}
          <div className="flex justify-end gap-2 sm:col-span-2">
            <Button onClick={() => show(false)}>Cancel</Button>
            <Button type="submit" look="primary" busy={make.isPending} disabled={!name.trim()}>
              Create token
            </Button>
          </div>
        </form>
      )}
    </Dialog>
  );
}
