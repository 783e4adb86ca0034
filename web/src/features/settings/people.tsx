import { Plus } from "lucide-react";
import { useState } from "react";
import { fieldError } from "@/api/errors";
import { useCurrentUser } from "@/api/queries/account";
import { useCreateUser, useSetUserPassword, useUpdateUser, useUsers } from "@/api/queries/users";
import type { User } from "@/api/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { SecretInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";
import { UserLimits } from "./quotas";
import { NAME_RULE, PASSWORD_RULE } from "./rules";

const ROLES = [
  { value: "member", label: "Member", detail: "Can use their own projects and projects they are a member of." },
  { value: "admin", label: "Administrator", detail: "Can see and change everything." },
];

export function People() {
  const query = useUsers();
  const currentUser = useCurrentUser();
  const [adding, setAdding] = useState(false);
  return (
    <Section
      title="People"
      description="Everyone with an account on this server."
      actions={
        <Button size="sm" onClick={() => setAdding(true)}>
          <Plus className="size-3.5" aria-hidden /> Add a person
        </Button>
      }
    >
      <Loaded query={query}>
        {(people) => (
          <ul className="divide-y">
            {people.map((user) => (
              <UserRow key={user.id} user={user} own={user.id === currentUser?.id} />
            ))}
          </ul>
        )}
      </Loaded>
      <Dialog
        open={adding}
        onOpenChange={setAdding}
        title="Add a person"
        description="No invitation is sent: give them the name and password yourself. Without a password they can only use API tokens."
      >
        <UserForm onDone={() => setAdding(false)} />
      </Dialog>
    </Section>
  );
}

function UserRow({ user, own }: { user: User; own: boolean }) {
  const [resetting, setResetting] = useState(false);
  const [limiting, setLimiting] = useState(false);
  const change = useUpdateUser({ onError: showError(`Could not change ${user.name}`) });
  const disabled = user.disabledAt !== null;
  return (
    <li className="flex flex-wrap items-center gap-x-3 gap-y-2 px-4 py-2.5">
      <div className="min-w-0 flex-1 basis-40">
        <p className="flex items-center gap-2 text-[13px] font-medium">
          <span className="truncate">{user.name}</span>
          {own && <Badge tone="info">you</Badge>}
          {disabled && <Badge tone="bad">disabled</Badge>}
        </p>
        <p className="text-xs text-soft">
          created <Ago at={user.createdAt} />
          {!user.hasPassword && " · API tokens only"}
        </p>
      </div>
      {own ? (
        <span className="text-xs text-soft">Administrator; edit your account under Profile</span>
      ) : (
        <>
          <Select
            label={`Role of ${user.name}`}
            className="!w-36"
            disabled={change.isPending}
            value={user.role}
            onChange={(role) => change.mutate({ id: user.id, role: role as User["role"] })}
            choices={ROLES}
          />
          <Button size="sm" onClick={() => setLimiting(true)} aria-label={`Limits of ${user.name}`}>
            Limits
          </Button>
          <Button size="sm" onClick={() => setResetting(true)} aria-label={`Set password for ${user.name}`}>
            Set password
          </Button>
          {disabled ? (
            <Button
              size="sm"
              busy={change.isPending}
              onClick={() => change.mutate({ id: user.id, disabled: false })}
              aria-label={`Enable ${user.name}`}
            >
              Enable
            </Button>
          ) : (
            <Confirm
              trigger={
                <Button size="sm" look="danger" aria-label={`Disable ${user.name}`}>
                  Disable
                </Button>
              }
              title={`Disable ${user.name}?`}
              action="Disable"
              onConfirm={() => change.mutateAsync({ id: user.id, disabled: true })}
            >
              They are signed out and their API tokens are revoked. Enabling them again does not restore the tokens.
              Their data is kept.
            </Confirm>
          )}
        </>
      )}
      <Dialog open={limiting} onOpenChange={setLimiting} title={`Limits of ${user.name}`}>
        {limiting && <UserLimits user={user} onDone={() => setLimiting(false)} />}
      </Dialog>
      <Dialog
        open={resetting}
        onOpenChange={setResetting}
        title={`Set password for ${user.name}`}
        description={
          user.hasPassword
            ? "Signs them out everywhere. Their API tokens stay valid."
            : "They have no password yet. With one, they can sign in with their name. Their API tokens stay valid."
        }
      >
        <PasswordForm user={user} onDone={() => setResetting(false)} />
      </Dialog>
    </li>
  );
}

/** Exported for tests. */
export function PasswordForm({ user, onDone }: { user: User; onDone: () => void }) {
  const [password, setPassword] = useState("");
  const save = useSetUserPassword({
    onSuccess: (_, { password: value }) => {
      toast.success(value === null ? `Password of ${user.name} removed` : `Password of ${user.name} changed`);
      onDone();
    },
  });
  return (
    <SubmitForm
      busy={save.isPending}
      error={save.error}
      ready={Boolean(password)}
      submitLabel="Set password"
      onSubmit={() => save.mutate({ id: user.id, password })}
      onCancel={onDone}
      aside={
        user.hasPassword && (
          <Button look="danger" disabled={save.isPending} onClick={() => save.mutate({ id: user.id, password: null })}>
            Remove password
          </Button>
        )
      }
    >
      <Field label="New password" hint={PASSWORD_RULE} error={fieldError(save.error, "password")}>
        {(control) => (
          <SecretInput {...control} autoFocus value={password} onChange={(event) => setPassword(event.target.value)} />
        )}
      </Field>
    </SubmitForm>
  );
}

export function UserForm({ onDone }: { onDone: () => void }) {
  const [form, set] = useFormState({ name: "", role: "member" as User["role"], password: "" });
  const create = useCreateUser({
    onSuccess: (user) => {
      toast.success(
        `${user.name} added`,
        user.role === "member"
          ? { description: "They see only projects they are added to, under Members in the project's settings." }
          : {},
      );
      onDone();
    },
  });
  const submit = () =>
    create.mutate({ name: form.name.trim(), role: form.role, ...(form.password && { password: form.password }) });
  return (
    <SubmitForm
      columns
      busy={create.isPending}
      error={create.error}
      ready={Boolean(form.name.trim())}
      submitLabel="Add"
      onSubmit={submit}
      onCancel={onDone}
    >
      <Field label="Name" hint={`Used to sign in. ${NAME_RULE}`} error={fieldError(create.error, "name")}>
        {(control) => (
          <Input
            {...control}
            autoFocus
            autoComplete="off"
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Role" error={fieldError(create.error, "role")}>
        {(control) => (
          <Select
            {...control}
            value={form.role}
            onChange={(role) => set({ role: role as User["role"] })}
            choices={ROLES}
          />
        )}
      </Field>
      <Field
        label="Password (optional)"
        className="sm:col-span-2"
        hint={PASSWORD_RULE}
        error={fieldError(create.error, "password")}
      >
        {(control) => (
          <SecretInput {...control} value={form.password} onChange={(event) => set({ password: event.target.value })} />
        )}
      </Field>
    </SubmitForm>
  );
}
