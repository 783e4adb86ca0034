import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, got } from "@/api/client";
import { me } from "@/api/queries";
import type { User } from "@/api/types";
import { fault, overall } from "@/lib/problems";
import { Section } from "@/shell/page";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Field, Input } from "@/ui/field";
import { Fields, Form, useDraft } from "@/ui/form";
import { SecretInput } from "@/ui/inputs";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { NAME_RULE, PASSWORD_RULE } from "./rules";

export function Profile() {
  const query = useQuery(me);
  return (
    <Loaded query={query}>
      {({ user, hasPassword }) => (
        <>
          <Name user={user} />
          <Section title="Account">
            <dl className="grid grid-cols-[auto_1fr] items-center gap-x-4 gap-y-1.5 px-4 py-3 text-[13px]">
              <dt className="text-soft">Role</dt>
              <dd>
                <Badge tone={user.role === "admin" ? "accent" : "idle"}>
                  {user.role === "admin" ? "Administrator" : "Member"}
                </Badge>
              </dd>
              <dt className="text-soft">User ID</dt>
              <dd className="flex min-w-0 items-center gap-1">
                <code className="truncate font-mono text-xs">{user.id}</code>{" "}
                <CopyButton text={user.id} label="Copy user ID" />
              </dd>
              <dt className="text-soft">Created</dt>
              <dd>
                <Ago at={user.createdAt} />
              </dd>
            </dl>
          </Section>
          <Password hasOne={hasPassword} />
        </>
      )}
    </Loaded>
  );
}

function Name({ user }: { user: User }) {
  const client = useQueryClient();
  const draft = useDraft({ name: user.name });
  const save = useMutation({
    mutationFn: () =>
      got(
        api.PATCH("/api/v1/users/{user_id}", {
          params: { path: { user_id: user.id } },
          body: { name: draft.value.name },
        }),
      ),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: me.queryKey });
      void client.invalidateQueries({ queryKey: ["users"] });
      toast.success("Saved");
    },
  });
  const frozen = user.role === "admin" ? undefined : "Only administrators can change names.";
  return (
    <Form draft={draft} onSave={() => save.mutate()} busy={save.isPending} error={save.error} frozen={frozen}>
      <Section title="Profile">
        <Fields>
          <Field label="Name" hint={frozen ?? `Used to sign in. ${NAME_RULE}`} error={fault(save.error, "name")}>
            {(wear) => (
              <Input
                {...wear}
                value={draft.value.name}
                autoComplete="username"
                onChange={(event) => draft.set({ name: event.target.value })}
              />
            )}
          </Field>
        </Fields>
      </Section>
    </Form>
  );
}

/** Set or change the password. A change signs out all other sign-ins. */
function Password({ hasOne }: { hasOne: boolean }) {
  const client = useQueryClient();
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const change = useMutation({
    mutationFn: () =>
      got(api.PUT("/api/v1/me/password", { body: { password, ...(hasOne && { currentPassword: current }) } })),
    onSuccess: () => {
      setCurrent("");
      setPassword("");
      setAgain("");
      void client.invalidateQueries({ queryKey: me.queryKey });
      toast.success(hasOne ? "Password changed. You are signed out everywhere else." : "Password set");
    },
  });
  const differs = again !== "" && again !== password;
  const complete = password !== "" && password === again && (!hasOne || current !== "");
  return (
    <Section
      title="Password"
      description="For signing in with your name. Changing it signs you out everywhere else; API tokens stay valid."
    >
      <form
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          if (complete && !change.isPending) change.mutate();
        }}
      >
        <Fields>
          {hasOne && (
            <Field label="Current password" className="sm:col-span-2" error={fault(change.error, "currentPassword")}>
              {(wear) => (
                <SecretInput
                  {...wear}
                  autoComplete="current-password"
                  value={current}
                  onChange={(event) => setCurrent(event.target.value)}
                />
              )}
            </Field>
          )}
          <Field label="New password" hint={PASSWORD_RULE} error={fault(change.error, "password")}>
            {(wear) => (
              <SecretInput
                {...wear}
                autoComplete="new-password"
                value={password}
                onChange={(event) => setPassword(event.target.value)}
              />
            )}
          </Field>
          <Field label="Confirm password" error={differs ? "The passwords do not match." : undefined}>
            {(wear) => (
              <SecretInput
                {...wear}
                autoComplete="new-password"
                value={again}
                onChange={(event) => setAgain(event.target.value)}
              />
            )}
          </Field>
          <div className="flex flex-wrap items-center gap-3 sm:col-span-2">
            <Button type="submit" busy={change.isPending} disabled={!complete}>
              {hasOne ? "Change password" : "Set password"}
            </Button>
            {change.error && (
              <p role="alert" className="text-[13px] text-bad">
                {overall(change.error)}
              </p>
            )}
          </div>
        </Fields>
      </form>
    </Section>
  );
}
