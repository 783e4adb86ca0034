import { Link } from "@tanstack/react-router";
import { Empty } from "@/ui/states";
import { useTitle } from "./page";

export function NotFound() {
  useTitle("Not found");
  return (
    <main>
      <Empty
        title={<h1>There is no such page</h1>}
        action={
          <Link to="/" className="text-accent underline">
            To the board
          </Link>
        }
      >
        The address may be mistyped, or what was here has been removed.
      </Empty>
    </main>
  );
}
