import { useState } from "react";
import { fieldError, formError } from "@/api/errors";
import { useChangePassword, useMe } from "@/api/queries/account";
import { useRenameMe } from "@/api/queries/users";
import type { User } from "@/api/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Field, Input } from "@/ui/field";
import { Fields, Form, FormError, useDraft } from "@/ui/form";
import { SecretInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { NAME_RULE, PASSWORD_RULE } from "./rules";

export function Profile() {
  const query = useMe();
  return (
    <Loaded query={query}>
      {({ user, hasPassword }) => (
        <>
          <NameForm user={user} />
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
          <PasswordForm hasPassword={hasPassword} />
        </>
      )}
    </Loaded>
  );
}

function NameForm({ user }: { user: User }) {
  const draft = useDraft({ name: user.name });
  const save = useRenameMe({ onSuccess: () => toast.success("Saved") });
  const frozen = user.role === "admin" ? undefined : "Only administrators can change names.";
  return (
    <Form
      draft={draft}
      onSave={() => save.mutate({ id: user.id, name: draft.value.name })}
      busy={save.isPending}
      error={save.error}
      frozen={frozen}
    >
      <Section title="Profile">
        <Fields>
          <Field label="Name" hint={frozen ?? `Used to sign in. ${NAME_RULE}`} error={fieldError(save.error, "name")}>
            {(control) => (
              <Input
                {...control}
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
function PasswordForm({ hasPassword }: { hasPassword: boolean }) {
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  const [confirmation, setConfirmation] = useState("");
  const change = useChangePassword({
    onSuccess: () => {
      setCurrent("");
      setPassword("");
      setConfirmation("");
      toast.success(hasPassword ? "Password changed. You are signed out everywhere else." : "Password set");
    },
  });
  const submit = () => change.mutate({ password, ...(hasPassword && { currentPassword: current }) });
  const differs = confirmation !== "" && confirmation !== password;
  const complete = password !== "" && password === confirmation && (!hasPassword || current !== "");
  return (
    <Section
      title="Password"
      description="For signing in with your name. Changing it signs you out everywhere else; API tokens stay valid."
    >
      <form
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          if (complete && !change.isPending) submit();
        }}
      >
        <Fields>
          {hasPassword && (
            <Field
              label="Current password"
              className="sm:col-span-2"
              error={fieldError(change.error, "currentPassword")}
            >
              {(control) => (
                <SecretInput
                  {...control}
                  autoComplete="current-password"
                  value={current}
                  onChange={(event) => setCurrent(event.target.value)}
                />
              )}
            </Field>
          )}
          <Field label="New password" hint={PASSWORD_RULE} error={fieldError(change.error, "password")}>
            {(control) => (
              <SecretInput
                {...control}
                autoComplete="new-password"
                value={password}
                onChange={(event) => setPassword(event.target.value)}
              />
            )}
          </Field>
          <Field label="Confirm password" error={differs ? "The passwords do not match." : undefined}>
            {(control) => (
              <SecretInput
                {...control}
                autoComplete="new-password"
                value={confirmation}
                onChange={(event) => setConfirmation(event.target.value)}
              />
            )}
          </Field>
          <div className="flex flex-wrap items-center gap-3 sm:col-span-2">
            <Button type="submit" busy={change.isPending} disabled={!complete}>
              {hasPassword ? "Change password" : "Set password"}
            </Button>
            {change.error && <FormError>{formError(change.error)}</FormError>}
          </div>
        </Fields>
      </form>
    </Section>
  );
}
