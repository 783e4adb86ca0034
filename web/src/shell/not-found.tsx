import { Link } from "@tanstack/react-router";
import { useTitle } from "@/ui/page";
import { Empty } from "@/ui/states";

export function NotFound() {
  useTitle("Not found");
  return (
    <main>
      <Empty
        title={<h1>Page not found</h1>}
        action={
          <Link to="/" className="text-accent underline">
            Go to the board
          </Link>
        }
      >
        The address may be wrong, or the page has been deleted.
      </Empty>
    </main>
  );
}
