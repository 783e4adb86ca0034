import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, got } from "@/api/client";
import { Button } from "@/ui/button";
import { failed, toast } from "@/ui/toast";

/** Create the sample project, a small repository with tasks. Idempotent: later calls return the same project. */
export function TakeSample({ onDone }: { onDone?: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const take = useMutation({
    mutationFn: () => got(api.POST("/api/v1/projects/sample")),
    onSuccess: ({ project }) => {
      void client.invalidateQueries({ queryKey: ["projects"] });
      onDone?.();
      toast.success(`Project ${project.name} created`);
      return navigate({ to: "/board", search: { project: project.id } });
    },
    onError: failed("Could not create the sample project"),
  });
  return (
    <Button busy={take.isPending} onClick={() => take.mutate()}>
      Use the sample repository
    </Button>
  );
}
