import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, got } from "@/api/client";
import { Button } from "@/ui/button";
import { failed, toast } from "@/ui/toast";

/** The platform makes a small repository with tasks for it; asked again, it is the same one. */
export function TakeSample({ onDone }: { onDone?: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const take = useMutation({
    mutationFn: () => got(api.POST("/api/v1/projects/sample")),
    onSuccess: ({ project }) => {
      void client.invalidateQueries({ queryKey: ["projects"] });
      onDone?.();
      toast.success(`The project ${project.name} is there`);
      return navigate({ to: "/board", search: { project: project.id } });
    },
    onError: failed("Could not make the sample project"),
  });
  return (
    <Button busy={take.isPending} onClick={() => take.mutate()}>
      Take the sample repository
    </Button>
  );
}
