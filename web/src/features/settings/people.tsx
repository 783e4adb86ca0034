import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Plus } from "lucide-react";
import { type FormEvent, useState } from "react";
import { api, got, type Schemas } from "@/api/client";
import { me, users } from "@/api/queries";
import type { User } from "@/api/types";
import { fault, overall } from "@/lib/problems";
import { Section } from "@/shell/page";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { SecretInput } from "@/ui/inputs";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { failed, toast } from "@/ui/toast";
import { NAME_RULE, PASSWORD_RULE } from "./rules";

const ROLES = [
  { value: "member", label: "Member", detail: "Can use their own projects and projects they are a member of." },
  { value: "admin", label: "Administrator", detail: "Can see and change everything." },
];

export function People() {
  const query = useQuery(users);
  const caller = useQuery(me).data?.user;
  const [adding, setAdding] = useState(false);
  return (
    <Section
      title="People"
      description="Everyone with an account on this installation."
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
              <Row key={user.id} user={user} own={user.id === caller?.id} />
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
        <Add onDone={() => setAdding(false)} />
      </Dialog>
    </Section>
  );
}

function Row({ user, own }: { user: User; own: boolean }) {
  const client = useQueryClient();
  const [resetting, setResetting] = useState(false);
  const change = useMutation({
    mutationFn: (body: Schemas["UserChange"]) =>
      got(api.PATCH("/api/v1/users/{user_id}", { params: { path: { user_id: user.id } }, body })),
    onSettled: () => client.invalidateQueries({ queryKey: ["users"] }),
    onError: failed(`Could not change ${user.name}`),
  });
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
            onChange={(role) => change.mutate({ role: role as User["role"] })}
            choices={ROLES}
          />
          <Button size="sm" onClick={() => setResetting(true)} aria-label={`Set password for ${user.name}`}>
            Set password
          </Button>
          {disabled ? (
            <Button
              size="sm"
              busy={change.isPending}
              onClick={() => change.mutate({ disabled: false })}
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
              onConfirm={() => change.mutateAsync({ disabled: true })}
            >
              Their tokens and sign-ins stop working immediately. Their data is kept.
            </Confirm>
          )}
        </>
      )}
      <Dialog
        open={resetting}
        onOpenChange={setResetting}
        title={`Set password for ${user.name}`}
        description="Signs them out everywhere. Their API tokens stay valid."
      >
        <Reset user={user} onDone={() => setResetting(false)} />
      </Dialog>
    </li>
  );
}

function Reset({ user, onDone }: { user: User; onDone: () => void }) {
  const [password, setPassword] = useState("");
  const save = useMutation({
    mutationFn: (value: string | null) =>
      got(api.PATCH("/api/v1/users/{user_id}", { params: { path: { user_id: user.id } }, body: { password: value } })),
    onSuccess: (_, value) => {
      toast.success(value === null ? `Password of ${user.name} removed` : `Password of ${user.name} changed`);
      onDone();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (password && !save.isPending) save.mutate(password);
  };
  return (
    <form onSubmit={submit} className="flex flex-col gap-3" noValidate>
      <Field label="New password" hint={PASSWORD_RULE} error={fault(save.error, "password")}>
        {(wear) => (
          <SecretInput {...wear} autoFocus value={password} onChange={(event) => setPassword(event.target.value)} />
        )}
      </Field>
      {save.error && (
        <p role="alert" className="text-[13px] text-bad">
          {overall(save.error)}
        </p>
      )}
      <div className="flex flex-wrap justify-end gap-2">
        <Button look="danger" className="mr-auto" disabled={save.isPending} onClick={() => save.mutate(null)}>
          Remove password
        </Button>
        <Button onClick={onDone}>Cancel</Button>
        <Button type="submit" look="primary" busy={save.isPending} disabled={!password}>
          Set password
        </Button>
      </div>
    </form>
  );
}

function Add({ onDone }: { onDone: () => void }) {
  const client = useQueryClient();
  const [form, setForm] = useState({ name: "", role: "member" as User["role"], password: "" });
  const set = (patch: Partial<typeof form>) => setForm((now) => ({ ...now, ...patch }));
  const add = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/users", {
          body: { name: form.name.trim(), role: form.role, ...(form.password && { password: form.password }) },
        }),
      ),
    onSuccess: (user) => {
      client.setQueryData(users.queryKey, (known) => known && [user, ...known.filter((one) => one.id !== user.id)]);
      void client.invalidateQueries({ queryKey: ["users"] });
      toast.success(`${user.name} added`);
      onDone();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (form.name.trim() && !add.isPending) add.mutate();
  };
  return (
    <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
      <Field label="Name" hint={`Used to sign in. ${NAME_RULE}`} error={fault(add.error, "name")}>
        {(wear) => (
          <Input
            {...wear}
            autoFocus
            autoComplete="off"
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Role" error={fault(add.error, "role")}>
        {(wear) => (
          <Select
            {...wear}
            value={form.role}
            onChange={(role) => set({ role: role as User["role"] })}
            choices={ROLES}
          />
        )}
      </Field>
      <Field label="Password" className="sm:col-span-2" hint={PASSWORD_RULE} error={fault(add.error, "password")}>
        {(wear) => (
          <SecretInput {...wear} value={form.password} onChange={(event) => set({ password: event.target.value })} />
        )}
      </Field>
      {add.error && (
        <p role="alert" className="text-[13px] text-bad sm:col-span-2">
          {overall(add.error)}
        </p>
      )}
      <div className="flex justify-end gap-2 sm:col-span-2">
        <Button onClick={onDone}>Cancel</Button>
        <Button type="submit" look="primary" busy={add.isPending} disabled={!form.name.trim()}>
          Add
        </Button>
      </div>
    </form>
  );
}
