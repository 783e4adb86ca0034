import { useState } from "react";
import { useTasks } from "@/api/queries/tasks";
import { pluralize } from "@/lib/format";
import { COLUMNS } from "@/model/status-labels";
import { Badge } from "@/ui/badge";
import { Checkbox, Input } from "@/ui/field";
import { Loaded } from "@/ui/states";
import { MAX_NEEDS } from "./task-form";

const SHOWN = 50;

/** Choose the tasks of the same project that must be done before this one starts. */
export function NeedsPicker({
  projectId,
  self,
  value,
  onChange,
  error,
}: {
  projectId: string;
  self: string | undefined;
  value: string[];
  onChange: (needs: string[]) => void;
  error: string | undefined;
}) {
  const [words, setWords] = useState("");
  const known = useTasks(projectId, { enabled: Boolean(projectId) });
  return (
    <fieldset className="flex flex-col gap-1">
      <legend className="mb-1 text-[13px] font-medium">
        Depends on{value.length > 0 && ` ${pluralize(value.length, "task")}`}
      </legend>
      <Loaded query={known}>
        {(list) => {
          const open = list.filter(
            (candidate) =>
              candidate.id !== self &&
              ((candidate.status !== "done" && candidate.status !== "cancelled") || value.includes(candidate.id)),
          );
          const found = open.filter(
            (candidate) =>
              value.includes(candidate.id) || candidate.title.toLowerCase().includes(words.trim().toLowerCase()),
          );
          if (!open.length) return <p className="text-xs text-faint">This project has no other open tasks.</p>;
          return (
            <>
              <Input
                aria-label="Search dependencies"
                placeholder="Search tasks that must be done first"
                value={words}
                onChange={(event) => setWords(event.target.value)}
              />
              <ul className="max-h-36 overflow-y-auto rounded-md border">
                {found.slice(0, SHOWN).map((task) => (
                  <li key={task.id} className="flex items-center gap-2 px-2 py-1">
                    <Checkbox
                      label={task.title}
                      checked={value.includes(task.id)}
                      onChange={(on) =>
                        onChange(on ? [...value, task.id].slice(0, MAX_NEEDS) : value.filter((id) => id !== task.id))
                      }
                    />
                    <Badge className="ml-auto">{COLUMNS[task.status].text}</Badge>
                  </li>
                ))}
                {found.length > SHOWN && (
                  <li className="px-2 py-1 text-xs text-faint">
                    and {found.length - SHOWN} more. Search to find them.
                  </li>
                )}
                {!found.length && <li className="px-2 py-1 text-xs text-faint">No matching tasks.</li>}
              </ul>
            </>
          );
        }}
      </Loaded>
      {error && <p className="text-xs text-bad">{error}</p>}
    </fieldset>
  );
}
