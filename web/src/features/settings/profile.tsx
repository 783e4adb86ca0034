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

export function Profile() {
  const query = useQuery(me);
  return (
    <Loaded query={query}>
      {({ user }) => (
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
              <dt className="text-soft">User id</dt>
              <dd className="flex min-w-0 items-center gap-1">
                <code className="truncate font-mono text-xs">{user.id}</code>{" "}
                <CopyButton text={user.id} label="Copy the user id" />
              </dd>
              <dt className="text-soft">Since</dt>
              <dd>
                <Ago at={user.createdAt} />
              </dd>
            </dl>
          </Section>
          {user.role === "admin" && <Password userId={user.id} />}
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
  const frozen = user.role === "admin" ? undefined : "Names and passwords are changed by administrators.";
  return (
    <Form draft={draft} onSave={() => save.mutate()} busy={save.isPending} error={save.error} frozen={frozen}>
      <Section title="Profile">
        <Fields>
          <Field label="Name" hint={frozen ?? "What you sign in with."} error={fault(save.error, "name")}>
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

/** A new password ends all logins, this one as well: so the new one is used for a login at once. */
function Password({ userId }: { userId: string }) {
  const client = useQueryClient();
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const change = useMutation({
    mutationFn: async () => {
      const user = await got(
        api.PATCH("/api/v1/users/{user_id}", { params: { path: { user_id: userId } }, body: { password } }),
      );
      await got(api.POST("/api/v1/login", { body: { name: user.name, password } }));
    },
    onSuccess: () => {
      setPassword("");
      setAgain("");
      void client.invalidateQueries({ queryKey: me.queryKey });
      toast.success("The password is changed; all other logins are over");
    },
  });
  const differs = again !== "" && again !== password;
  return (
    <Section
      title="Password"
      description="With one you can sign in by name. Other logins end when it is changed; API tokens go on."
    >
      <form
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          if (password && password === again && !change.isPending) change.mutate();
        }}
      >
        <Fields>
          <Field label="New password" error={fault(change.error, "password")}>
            {(wear) => <SecretInput {...wear} value={password} onChange={(event) => setPassword(event.target.value)} />}
          </Field>
          <Field label="Once more" error={differs ? "That is not the same." : undefined}>
            {(wear) => <SecretInput {...wear} value={again} onChange={(event) => setAgain(event.target.value)} />}
          </Field>
          <div className="flex flex-wrap items-center gap-3 sm:col-span-2">
            <Button type="submit" busy={change.isPending} disabled={!password || password !== again}>
              Change the password
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
