/** What a user or a project uses, next to its limits. */
import { useState } from "react";
import { useCurrentUser } from "@/api/queries/account";
import { useProjects } from "@/api/queries/projects";
import { useProjectQuotas, useSetUserQuotas, useUserQuotas } from "@/api/queries/quotas";
import type { Quota, User, UserQuotas } from "@/api/types";
import { count, formatBytes, formatCost } from "@/lib/format";
import { Bar } from "@/ui/bar";
import { Field, Input, Select } from "@/ui/field";
import { SubmitForm } from "@/ui/form";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { toast } from "@/ui/toast";

const TITLES: Record<Quota["name"], string> = {
  runningSandboxes: "Running sandboxes",
  cpus: "Processors of running sandboxes",
  memoryMb: "Memory of running sandboxes",
  diskMb: "Disk space of all sandboxes",
  monthlyUsd: "Models this month",
  monthlyTokens: "Tokens this month",
};

const FIELDS: { name: keyof UserQuotas & Quota["name"]; label: string }[] = [
  { name: "runningSandboxes", label: "Running sandboxes" },
  { name: "cpus", label: "Processors" },
  { name: "memoryMb", label: "Memory (MiB)" },
  { name: "diskMb", label: "Disk space (MiB)" },
  { name: "monthlyUsd", label: "Models per month (US dollars)" },
  { name: "monthlyTokens", label: "Models per month (tokens)" },
];

function formatAmount(name: Quota["name"], amount: number): string {
  if (name === "memoryMb" || name === "diskMb") return formatBytes(amount * 1024 * 1024);
  return name === "monthlyUsd" ? formatCost(amount) : count(amount);
}

/** The limits of the signed-in user and of a project. */
export function Limits() {
  const user = useCurrentUser();
  return (
    <>
      <Section title="Your limits" description="What you use, and how much you may. Administrators set the limits.">
        {user && <OfUser id={user.id} />}
      </Section>
      <OfProjects />
    </>
  );
}

function OfUser({ id }: { id: string }) {
  const query = useUserQuotas(id);
  return <Loaded query={query}>{({ items }) => <QuotaList items={items} />}</Loaded>;
}

function OfProjects() {
  const projects = useProjects().data ?? [];
  const [chosen, choose] = useState<string>();
  const id = chosen ?? projects[0]?.id;
  if (id === undefined) return null;
  return (
    <Section
      title="Project limits"
      description="What the sandboxes and agents of all members use. The owner sets the limits in the project's settings."
      actions={
        <Select
          label="Project"
          value={id}
          onChange={choose}
          choices={projects.map((project) => ({ value: project.id, label: project.name }))}
        />
      }
    >
      <OfProject id={id} />
    </Section>
  );
}

function OfProject({ id }: { id: string }) {
  const query = useProjectQuotas(id);
  return <Loaded query={query}>{({ items }) => <QuotaList items={items} />}</Loaded>;
}

export function QuotaList({ items }: { items: Quota[] }) {
  return (
    <ul className="divide-y">
      {items.map(({ name, used, limit }) => {
        const figures =
          limit === null
            ? `${formatAmount(name, used)}, no limit`
            : `${formatAmount(name, used)} of ${formatAmount(name, limit)}`;
        return (
          <li key={name} className="flex flex-wrap items-center gap-x-4 gap-y-1 px-4 py-2 text-[13px]">
            <span className="min-w-0 flex-1 basis-48">{TITLES[name]}</span>
            <span className="basis-40 tabular-nums sm:text-right">{figures}</span>
            <span className="w-32">
              {limit !== null && <Bar label={`${TITLES[name]}: ${figures}`} part={used / limit} />}
            </span>
          </li>
        );
      })}
    </ul>
  );
}

/** The usage of a user, and a form for administrators to set their limits. */
export function UserLimits({ user, onDone }: { user: User; onDone: () => void }) {
  const query = useUserQuotas(user.id);
  return (
    <Loaded query={query}>
      {({ items, own }) => (
        <>
          <div className="-mx-4 mb-4 border-y">
            <QuotaList items={items} />
          </div>
          <QuotaForm user={user} own={own} onDone={onDone} />
        </>
      )}
    </Loaded>
  );
}

function QuotaForm({ user, own, onDone }: { user: User; own: UserQuotas; onDone: () => void }) {
  const [values, setValues] = useState(() =>
    Object.fromEntries(FIELDS.map(({ name }) => [name, own[name] == null ? "" : String(own[name])])),
  );
  const save = useSetUserQuotas({
    onSuccess: () => {
      toast.success(`Limits of ${user.name} changed`);
      onDone();
    },
  });
  const submit = () => {
    const quotas = Object.fromEntries(
      FIELDS.map(({ name }) => [name, values[name]?.trim() ? Number(values[name]) : null]),
    ) as UserQuotas;
    save.mutate({ id: user.id, quotas });
  };
  return (
    <SubmitForm
      columns
      busy={save.isPending}
      error={save.error}
      ready={FIELDS.every(({ name }) => Number(values[name] || 0) >= 0)}
      submitLabel="Save"
      onSubmit={submit}
      onCancel={onDone}
    >
      {FIELDS.map(({ name, label }) => (
        <Field key={name} label={label} hint="Empty: the server's default. 0: no limit.">
          {(control) => (
            <Input
              {...control}
              type="number"
              min={0}
              step={name === "monthlyUsd" ? "0.01" : "1"}
              value={values[name] ?? ""}
              onChange={(event) => setValues((now) => ({ ...now, [name]: event.target.value }))}
            />
          )}
        </Field>
      ))}
    </SubmitForm>
  );
}
