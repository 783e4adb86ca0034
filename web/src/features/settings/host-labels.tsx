import { useState } from "react";
import { useUpdateHost } from "@/api/queries/hosts";
import type { Host } from "@/api/types";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field } from "@/ui/field";
import { SubmitForm } from "@/ui/form";
import { ListInput } from "@/ui/inputs";
import { formatLabels, parseLabelChange } from "./labels";

/** A button that opens the labels of a host. */
export function LabelsButton({ host }: { host: Host }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button size="sm" aria-label={`Labels of ${host.name}`} onClick={() => setOpen(true)}>
        Labels
      </Button>
      <Dialog
        open={open}
        onOpenChange={setOpen}
        title={`Labels of ${host.name}`}
        description="Projects, templates and clients can require labels. Their sandboxes are placed only on hosts that have them."
      >
        {open && <LabelsForm host={host} onDone={() => setOpen(false)} />}
      </Dialog>
    </>
  );
}

/** Replace the labels of a host. */
export function LabelsForm({ host, onDone }: { host: Host; onDone: () => void }) {
  const [lines, setLines] = useState(formatLabels(host.labels));
  const change = useUpdateHost({ onSuccess: onDone });
  const labels = parseLabelChange(lines, host.labels);
  const wrong = typeof labels === "string";
  return (
    <SubmitForm
      busy={change.isPending}
      error={change.error}
      ready={!wrong}
      submitLabel="Save"
      onSubmit={() => !wrong && change.mutate({ id: host.id, labels })}
      onCancel={onDone}
    >
      <Field
        label="Labels"
        hint="One per line, such as gpu=yes. Sandboxes that already run stay where they are."
        error={wrong ? labels : undefined}
      >
        {(control) => (
          <ListInput {...control} autoFocus mono rows={5} placeholder="gpu=yes" value={lines} onChange={setLines} />
        )}
      </Field>
    </SubmitForm>
  );
}
