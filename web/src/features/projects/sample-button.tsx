import { useNavigate } from "@tanstack/react-router";
import { useCreateSampleProject } from "@/api/queries/projects";
import { Button } from "@/ui/button";
import { showError, toast } from "@/ui/toast";

/** Create the sample project, a small repository with tasks. Idempotent: later calls return the same project. */
export function SampleButton({ onDone }: { onDone?: () => void }) {
  const navigate = useNavigate();
  const create = useCreateSampleProject({
    onSuccess: ({ project }) => {
      onDone?.();
      toast.success(`Project ${project.name} created`);
      return navigate({ to: "/board", search: { project: project.id } });
    },
    onError: showError("Could not create the sample project"),
  });
  return (
    <Button busy={create.isPending} onClick={() => create.mutate()}>
      Use the sample repository
    </Button>
  );
}
