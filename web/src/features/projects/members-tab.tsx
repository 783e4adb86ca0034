import { Link } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { useCurrentUser } from "@/api/queries/account";
import { useAddMember, useMembers, useRemoveMember } from "@/api/queries/projects";
import { useUsers } from "@/api/queries/users";
import type { Project } from "@/api/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { useReadOnlyReason } from "./project-form";

export function MembersTab({ project }: { project: Project }) {
  const frozen = Boolean(useReadOnlyReason(project));
  const user = useCurrentUser();
  const people = useUsers({ enabled: user?.role === "admin", refetchOnMount: "always" });
  const query = useMembers(project.id);
  const add = useAddMember({ onError: showError("Could not add the member") });
  const remove = useRemoveMember({ onError: showError("Could not remove the member") });
  const owner =
    project.ownerId === user?.id
      ? `${user.name} (you)`
      : (people.data?.find((candidate) => candidate.id === project.ownerId)?.name ?? project.ownerId);
  const others = people.data?.filter(
    (candidate) =>
      !candidate.disabledAt &&
      candidate.id !== project.ownerId &&
      !query.data?.some((member) => member.id === candidate.id),
  );
  return (
    <Section
      title="Members"
      description="Members can see and work on the project, its tasks and its sessions. Only the owner and administrators can change its settings."
    >
      <ul className="divide-y">
        <li className="flex items-center justify-between gap-3 px-4 py-2.5 text-[13px]">
          <span className="min-w-0 truncate">{owner}</span>
          <Badge tone="accent">Owner</Badge>
        </li>
        <Loaded query={query}>
          {(members) => (
            <>
              {members.map((member) => (
                <li key={member.id} className="flex items-center justify-between gap-3 px-4 py-2 text-[13px]">
                  <span className="min-w-0 truncate">{member.name}</span>
                  <Confirm
                    trigger={
                      <Button size="sm" disabled={frozen && member.id !== user?.id}>
                        {member.id === user?.id ? "Leave" : "Remove"}
                      </Button>
                    }
                    title={member.id === user?.id ? "Leave this project?" : `Remove ${member.name}?`}
                    action={member.id === user?.id ? "Leave" : "Remove"}
                    onConfirm={() => remove.mutateAsync({ projectId: project.id, userId: member.id })}
                  >
                    {member.id === user?.id
                      ? "You lose access to the project and its tasks."
                      : "They lose access to the project and its tasks."}
                  </Confirm>
                </li>
              ))}
              {members.length === 0 && <li className="px-4 py-2.5 text-[13px] text-soft">No other members yet.</li>}
            </>
          )}
        </Loaded>
      </ul>
      {!frozen && (
        <AddMember
          people={user?.role === "admin" ? (others ?? []) : undefined}
          loading={people.isFetching}
          busy={add.isPending}
          onAdd={(id) => add.mutateAsync({ projectId: project.id, userId: id })}
        />
      )}
    </Section>
  );
}

/** Add a member. Administrators choose from a list; others enter the user ID from that person's profile. */
function AddMember({
  people,
  loading,
  busy,
  onAdd,
}: {
  people: { id: string; name: string }[] | undefined;
  loading: boolean;
  busy: boolean;
  onAdd: (userId: string) => Promise<unknown>;
}) {
  const [chosen, setChosen] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (chosen.trim() && !busy)
      onAdd(chosen.trim()).then(
        () => setChosen(""),
        () => undefined,
      );
  };
  return (
    <form onSubmit={submit} className="flex flex-wrap items-end gap-2 border-t px-4 py-3">
      <Field
        label="Add a member"
        className="min-w-0 flex-1 basis-52"
        hint={
          people ? (
            people.length || loading ? undefined : (
              <>
                Everyone with an account is already in this project.{" "}
                <Link to="/settings" search={{ tab: "people" }} className="text-accent underline underline-offset-2">
                  Add a person
                </Link>{" "}
                first, then choose them here.
              </>
            )
          ) : (
            "They can find their user ID under Settings, Profile."
          )
        }
      >
        {(control) =>
          people ? (
            <Select
              {...control}
              value={chosen}
              onChange={setChosen}
              placeholder={people.length ? "Choose a person" : loading ? "Loading…" : "No one else to add"}
              disabled={!people.length}
              choices={people.map((person) => ({ value: person.id, label: person.name }))}
            />
          ) : (
            <Input
              {...control}
              placeholder="usr_…"
              spellCheck={false}
              value={chosen}
              onChange={(event) => setChosen(event.target.value)}
            />
          )
        }
      </Field>
      <Button type="submit" busy={busy} disabled={!chosen.trim()}>
        Add
      </Button>
    </form>
  );
}
